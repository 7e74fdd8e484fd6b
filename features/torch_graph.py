"""The operator graph of a torch job, traced on the meta device: forward, backward, optimizer.

Every aten operator of one real training step is recorded below autograd. On the meta device no
weight is allocated and nothing is computed, so a model of any size takes seconds.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from presage.features.errors import GraphError
from presage.features.graph import OpGraph, OpNode, merge_equal
from presage.features.op_kinds import aten_kind

FREE_OPS = frozenset(
    "empty empty_strided empty_like new_empty new_empty_strided detach _local_scalar_dense "
    "_unsafe_view unsafe_split unsafe_split_with_sizes unsafe_chunk _reshape_alias".split()
)
# FLOPs per element; round figures do, since these operators are bound by memory.
ELEMENT_FLOPS = {"Normalization": 8, "Softmax": 5, "Copy": 0, "Embedding": 0, "Concat": 0}


def trace_step(
    run: Callable[[], None], modules: Sequence[nn.Module], input_elements: int
) -> OpGraph:
    """Operator graph of one training step.

    Parameters
    ----------
    run : callable
        One whole step: forward, backward, optimizer. Called twice, since the first step also
        creates the optimizer's state; the second is recorded.
    modules : sequence of nn.Module
        All that is trained, built on the meta device.
    input_elements : int
        Elements of one sample of the input.

    Raises
    ------
    GraphError
        The step cannot run on the meta device; names the operator where torch does.
    """
    recorder = _Recorder(modules)
    try:
        with recorder, _optimizer_phase(recorder):
            run()
            recorder.recording = True
            run()
    except (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError) as error:
        raise GraphError(
            f"tracing failed after {recorder.last_op!r}: {_first_line(error)}; "
            "export the model to ONNX and pass that file instead"
        ) from error
    return OpGraph(
        nodes=merge_equal(recorder.nodes),
        parameters=recorder.parameter_elements,
        peak_live_bytes=recorder.peak_live_bytes,
        input_elements=input_elements,
    )


def trace_module(
    module: nn.Module, inputs: Sequence[Tensor], *, optimizer: str = "sgd", training: bool = True
) -> OpGraph:
    """Operator graph of a module and example inputs, both on the meta device.

    The loss is the sum of every floating-point output: its own cost is negligible, and no
    target is needed. With ``training=False`` only the forward pass is traced.
    """
    if not training:
        run: Callable[[], None] = torch.no_grad()(lambda: module(*inputs))
    else:
        parameters = [p for p in module.parameters() if p.requires_grad]
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        if optimizer not in kind:
            raise GraphError(f"optimizer {optimizer!r} is not known; use {', '.join(kind)}")
        stepper: Any = kind[optimizer](parameters, lr=1e-3) if parameters else None

        def run() -> None:
            module.zero_grad(set_to_none=True)
            outputs = [o for o in tree_leaves(module(*inputs)) if isinstance(o, Tensor)]
            losses = [o.sum() for o in outputs if o.is_floating_point() and o.requires_grad]
            if losses:
                torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
            if stepper is not None:
                stepper.step()

    batch = inputs[0].shape[0] if inputs and inputs[0].ndim else 1
    elements = sum(tensor.numel() for tensor in inputs) // max(1, batch)
    return trace_step(run, [module], max(1, elements))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operators, and the bytes of every storage from its birth to its death."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[OpNode] = []
        self.recording = False
        self.in_optimizer = False
        self.last_op = "the start"
        self.peak_live_bytes = 0
        self._live_bytes = 0
        self._live: dict[int, weakref.ref[Any]] = {}
        parameters = {id(p): p for module in modules for p in module.parameters()}
        self.parameter_elements = sum(p.numel() for p in parameters.values() if p.requires_grad)
        self._parameters = {_storage_key(p) for p in parameters.values()}
        for parameter in parameters.values():
            self._see(parameter)
        for module in modules:
            for buffer in module.buffers():
                self._see(buffer)
                self._parameters.add(_storage_key(buffer))  # running statistics are not data

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.last_op = str(func)
        out = func(*args, **(kwargs or {}))
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        for tensor in outputs:
            self._see(tensor)
        if self.recording and not _is_free(func):
            inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            self.nodes.extend(self._cost(func, args, inputs, outputs))
        return out

    @property
    def _phase(self) -> str:
        if self.in_optimizer:
            return "optimizer"
        # torch keeps a task id exactly while autograd runs a backward pass on this thread.
        backward = torch._C._current_graph_task_id() != -1
        return "backward" if backward else "forward"

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        size = storage.nbytes()
        self._live_bytes += size
        self.peak_live_bytes = max(self.peak_live_bytes, self._live_bytes)

        def forget(_: Any, key: int = key, size: int = size) -> None:
            self._live.pop(key, None)
            self._live_bytes -= size

        self._live[key] = weakref.ref(storage, forget)

    def _cost(
        self, func: Any, args: tuple[Any, ...], inputs: list[Tensor], outputs: list[Tensor]
    ) -> Iterator[OpNode]:
        """Nodes of one aten call: two for a matmul with bias, up to three for conv backward."""
        name, phase = func.overloadpacket.__name__, self._phase
        kind = "Update" if phase == "optimizer" else aten_kind(name)
        is_parameter = [_storage_key(t) in self._parameters for t in inputs]
        activations = [t for t, own in zip(inputs, is_parameter, strict=True) if not own]
        weights = [t for t, own in zip(inputs, is_parameter, strict=True) if own]
        if phase == "backward" and _is_bias_gradient(name, inputs, outputs):
            kind = "BiasAddGrad"

        def node(
            kind: str,
            flops: int,
            bytes_moved: int,
            *,
            suffix: str = "",
            read: Sequence[Tensor] = activations,
            own: Sequence[Tensor] = weights,
            written: Sequence[Tensor] = outputs,
        ) -> OpNode:
            return OpNode(
                op=f"aten.{name}{suffix}",
                kind=kind,
                phase=phase,
                input_elements=sum(t.numel() for t in read),
                output_elements=sum(t.numel() for t in written),
                parameters=sum(t.numel() for t in own),
                flops=int(flops),
                bytes_moved=int(bytes_moved),
            )

        read_write = _nbytes(inputs) + _nbytes(outputs)
        if name == "convolution_backward":
            yield from self._convolution_backward(args, outputs, node)
        elif name.startswith(("convolution", "_convolution")):
            flops = _convolution_flops(args, outputs[0])
            yield node("Conv2D", flops, read_write, own=[args[1]], read=[args[0]])
            if isinstance(args[2], Tensor):
                yield self._bias_add(node, args[2], outputs)
        elif name in ("addmm", "baddbmm", "addbmm", "addmv"):
            bias, left, right = inputs[:3]
            own = [t for t in (left, right) if _storage_key(t) in self._parameters]
            read = [t for t in (left, right) if _storage_key(t) not in self._parameters]
            flops = _matmul_flops(left, outputs[0])
            yield node("MatMul", flops, read_write, own=own, read=read)
            yield self._bias_add(node, bias, outputs)
        elif kind == "MatMul":
            yield node(kind, _matmul_flops(inputs[0], outputs[0]), read_write)
        elif kind == "Attention":
            yield node(kind, _attention_flops(name, inputs), read_write)
        elif name == "embedding" or name.startswith(("gather", "index_select", "_embedding_bag")):
            # Reads the rows it needs, not the table.
            yield node(kind, 0, 2 * _nbytes(outputs[:1]) + _nbytes(activations))
        else:
            elements = max((t.numel() for t in (*inputs, *outputs)), default=0)
            yield node(kind, ELEMENT_FLOPS.get(kind, 1) * elements, read_write)

    @staticmethod
    def _bias_add(node: Callable[..., OpNode], bias: Tensor, outputs: list[Tensor]) -> OpNode:
        """A bias fused into its matmul or convolution: a node for the count, no bytes moved."""
        return node("BiasAdd", outputs[0].numel(), 0, suffix=".bias", read=outputs, own=[bias])

    def _convolution_backward(
        self, args: tuple[Any, ...], outputs: list[Tensor], node: Callable[..., OpNode]
    ) -> Iterator[OpNode]:
        grad, image, weight, output_mask = args[0], args[1], args[2], args[-1]
        transposed, groups = args[7], args[9]
        # Both gradients are convolutions of the forward one's size.
        flops = _convolution_flops_of(image, weight, grad, transposed, groups)
        moved = _nbytes([grad, weight, image])
        if output_mask[0]:
            yield node("Conv2D", flops, moved, suffix=".input", read=[grad], written=[image])
        if output_mask[1]:
            both = [grad, image]
            yield node(
                "Conv2D", flops, moved, suffix=".weight", read=both, own=[], written=[weight]
            )
        if output_mask[2]:
            moved, bias = _nbytes([grad]), outputs[-1:]
            flops = int(grad.numel())
            yield node(
                "BiasAddGrad", flops, moved, suffix=".bias", read=[grad], own=[], written=bias
            )


@contextmanager
def _optimizer_phase(recorder: _Recorder) -> Iterator[None]:
    """Mark what runs inside any optimizer's ``step``."""

    def enter(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        recorder.in_optimizer = True

    def leave(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        recorder.in_optimizer = False

    handles = (register_optimizer_step_pre_hook(enter), register_optimizer_step_post_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _storage_key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _nbytes(tensors: Sequence[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _is_free(func: Any) -> bool:
    """Whether an operator only makes a view, or allocates without writing."""
    name = func.overloadpacket.__name__
    if name in FREE_OPS or name.startswith("_record_function"):
        return True
    returns = func._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _is_bias_gradient(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    """A backward sum over all dimensions but the last: how autograd writes a bias's gradient."""
    return (
        name == "sum"
        and inputs[0].ndim >= 2
        and outputs[0].numel() == inputs[0].shape[-1]
        and outputs[0].ndim == inputs[0].ndim
    )


def _matmul_flops(left: Tensor, out: Tensor) -> int:
    return 2 * int(out.numel()) * int(left.shape[-1])


def _convolution_flops(args: tuple[Any, ...], out: Tensor) -> int:
    image, weight, transposed, groups = args[0], args[1], args[6], args[8]
    return _convolution_flops_of(image, weight, out, transposed, groups)


def _convolution_flops_of(
    image: Tensor, weight: Tensor, out: Tensor, transposed: bool, groups: int
) -> int:
    """A multiply-add of every kernel element with every place it is laid on."""
    places = image if transposed else out
    channels = weight.shape[1]  # already divided by groups, in both layouts
    return 2 * int(places.numel()) * int(channels) * math.prod(weight.shape[2:])


def _attention_flops(name: str, inputs: list[Tensor]) -> int:
    """Two matmuls forward; five in the backward pass, which computes the scores again."""
    backward = name.endswith("_backward")
    query, key = (inputs[1], inputs[2]) if backward else (inputs[0], inputs[1])
    pairs = math.prod(query.shape[:-1]) * int(key.shape[-2])
    return (10 if backward else 4) * pairs * int(query.shape[-1])


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
