"""The operator graph of a torch job, traced on the meta device: forward, backward, optimizer.

Every aten operator of one real training step is recorded below autograd. On the meta device no
weight is allocated and nothing is computed, so a model of any size takes seconds.
"""

from __future__ import annotations

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
from presage.features.torch_cost import AtenCall, is_free, storage_key


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
        self._parameters = {storage_key(p) for p in parameters.values()}
        for parameter in parameters.values():
            self._see(parameter)
        for module in modules:
            for buffer in module.buffers():
                self._see(buffer)
                self._parameters.add(storage_key(buffer))  # running statistics are not data

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
        if self.recording and not is_free(func):
            inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            name = func.overloadpacket.__name__
            call = AtenCall(name, self._phase, args, inputs, outputs, self._parameters)
            self.nodes.extend(call.nodes())
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


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
