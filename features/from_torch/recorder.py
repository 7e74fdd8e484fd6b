"""Recorder of every operator of a step below autograd, and of the tensors that stay alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
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

from presage.features.from_torch.cost import OpCall
from presage.features.from_torch.live import LiveTensors, storage_key
from presage.features.from_torch.ops import is_composite, is_free, is_in_place, is_view
from presage.features.from_torch.results import ShapeCache
from presage.features.graph.op_graph import OpGraph, OpNode, merge_equal

_VALUE_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that records complete steps as a graph."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live = LiveTensors(modules)
        self._results = ShapeCache()
        self._nodes: Counter[OpNode] = Counter()
        self._recording = False
        self._in_optimizer = False
        self._phase = "forward"
        self._last_op: Any = "the start"
        self._inside = False

    @property
    def place(self) -> str:
        """Current position of tracing: in an operator, or in the Python code after it."""
        return f"{'in' if self._inside else 'after'} {str(self._last_op)!r}"

    @property
    def needs_values(self) -> bool:
        """Whether the current operator's result depends on values, not on shapes only."""
        tags = getattr(self._last_op, "tags", ())
        return self._inside and any(tag in tags for tag in _VALUE_DEPENDENT)

    def graph(self, input_elements: int) -> OpGraph:
        """Return the recorded graph."""
        return OpGraph(
            nodes=merge_equal(replace(node, count=n) for node, n in self._nodes.items()),
            parameters=self._live.parameter_elements,
            peak_live_bytes=self._live.peak_bytes,
            input_elements=input_elements,
            memory=self._live.estimate(),
        )

    def record(self, run: Callable[[], None], prepare: Callable[[], None]) -> None:
        """Record a step after ``prepare``, which creates at least the optimizer's state."""
        with self, self._following_optimizers():
            prepare()
            self._recording = True
            run()
            self._live.backward_ended()

    @contextmanager
    def _following_optimizers(self) -> Iterator[None]:
        """Track the ``step`` calls of all optimizers, and their state."""
        host = ExitStack()

        def enter(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            self._live.backward_ended()
            self._in_optimizer = True
            # Adam reads its step counter, which no tensor on the meta device can provide.
            host.enter_context(torch.device("cpu"))

        def leave(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            host.close()
            self._live.updated_by(optimizer)
            self._in_optimizer = False

        hooks = (register_optimizer_step_pre_hook(enter), register_optimizer_step_post_hook(leave))
        with host:
            try:
                yield
            finally:
                for hook in hooks:
                    hook.remove()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if is_composite(func):  # below autograd only in inference mode
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        self._follow_phase()
        self._last_op, self._inside = func, True
        inputs = _tensors((args, kwargs))
        self._live.observe_inputs(inputs)
        # An update's result is its target, and inferring the shape takes a third of the time.
        in_place = self._in_optimizer and is_in_place(func) and args[0].is_meta
        out = args[0] if in_place else self._results.call(func, args, kwargs)
        self._inside = False
        if is_view(func):
            return out
        outputs = _tensors(out)
        self._live.observe(outputs)
        if self._recording and not is_free(func):
            self._record(func, args, inputs, outputs)
        return out

    def _follow_phase(self) -> None:
        before, self._phase = self._phase, self._phase_now()
        if self._recording and (before, self._phase) == ("forward", "backward"):
            self._live.forward_ended()

    def _phase_now(self) -> str:
        if self._in_optimizer:
            return "optimizer"
        # torch keeps a task id exactly while autograd runs a backward pass on this thread.
        return "backward" if torch._C._current_graph_task_id() != -1 else "forward"

    def _record(
        self, func: Any, args: tuple[Any, ...], inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        weights = self._live.weights
        if func is torch.ops.aten._to_copy.default and storage_key(inputs[0]) in weights:
            weights.add(storage_key(outputs[0]))  # autocast's copy, in half precision
        call = OpCall(func, self._phase, args, inputs, outputs, weights)
        self._nodes.update(call.nodes())


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
