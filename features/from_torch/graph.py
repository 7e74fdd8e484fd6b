"""Operator graph of a torch job, traced on the meta device: forward, backward, optimizer.

On the meta device no weight is allocated and nothing is computed, so a model of any size takes
seconds. Its optimizers loop over parameters, with an operator per tensor, because torch fuses them
only on real devices: FLOPs and bytes are equal, operators are more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from presage.errors import GraphError
from presage.features.from_torch.autocast import AUTOCAST_DTYPES, meta_autocast
from presage.features.from_torch.fused import fused_kernels
from presage.features.from_torch.recorder import Recorder
from presage.features.graph.op_graph import OpGraph

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


def trace_step(
    run: Callable[[], None],
    modules: Sequence[nn.Module],
    input_elements: int,
    *,
    prepare: Callable[[], None] | None = None,
) -> OpGraph:
    """Trace the operator graph of one step, of training or of inference.

    Parameters
    ----------
    run : callable
        One complete step: forward and, for training, backward and optimizer.
    modules : sequence of nn.Module
        All modules of the step, built on the meta device.
    input_elements : int
        Elements of one sample of the input.
    prepare : callable, optional
        Creates what exists before every step but the first: the optimizer's state. Without it, a
        complete step runs unrecorded first.

    Raises
    ------
    GraphError
        The step cannot run on the meta device; names the operator if torch does.
    """
    recorder = None
    try:
        recorder = Recorder(modules)
        with fused_kernels():
            recorder.record(run, prepare or run)
    except (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError) as error:
        place = recorder.place if recorder else "before the first operator"
        by_value = recorder and recorder.needs_values and "meta" in str(error).lower()
        reason = (
            "its result depends on values, not shapes alone" if by_value else _first_sentence(error)
        )
        raise GraphError(
            f"tracing failed {place}: {reason}; export the model to ONNX and use that file instead"
        ) from error
    return recorder.graph(input_elements)


def trace_module(
    module: nn.Module,
    inputs: Sequence[Tensor],
    *,
    optimizer: str = "sgd",
    training: bool = True,
    precision: str = "fp32",
) -> OpGraph:
    """Trace a module with example inputs, both on the meta device.

    The loss is the sum of every floating-point output: its own cost is negligible, and it needs no
    target. With ``training=False`` only the forward pass is traced. With a precision of
    ``AUTOCAST_DTYPES`` in ``autocast.py``, fp32 weights run under autocast; otherwise the module
    computes in the types of its weights and inputs.
    """
    mixed = precision in AUTOCAST_DTYPES and _has_single(module)

    def answer() -> list[Tensor]:
        with meta_autocast(precision) if mixed else nullcontext():
            leaves = tree_leaves(module(*inputs))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]

    batch = inputs[0].shape[0] if inputs and inputs[0].ndim else 1
    elements = sum(tensor.numel() for tensor in inputs) // max(1, batch)
    if not training:
        return trace_step(_inference(answer), [module], max(1, elements))
    return _trace_training(module, answer, optimizer, max(1, elements))


def _has_single(module: nn.Module) -> bool:
    return any(parameter.dtype == torch.float32 for parameter in module.parameters())


def _inference(answer: Callable[[], list[Tensor]]) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            answer()

    return run


def _trace_training(
    module: nn.Module, answer: Callable[[], list[Tensor]], optimizer: str, input_elements: int
) -> OpGraph:
    if optimizer not in OPTIMIZERS:
        raise GraphError(f"optimizer {optimizer!r} is not known; use {', '.join(OPTIMIZERS)}")
    parameters = [p for p in module.parameters() if p.requires_grad]
    stepper: Any = OPTIMIZERS[optimizer](parameters) if parameters else None

    def run() -> None:
        module.zero_grad(set_to_none=True)
        losses = [output.float().sum() for output in answer() if output.requires_grad]
        if losses:
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        if stepper is not None:
            stepper.step()

    def update() -> None:
        """Create the optimizer's state without a forward and a backward pass."""
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        if stepper is not None:
            stepper.step()

    graph = trace_step(run, [module], input_elements, prepare=update)
    if all(p.grad is not None for p in parameters):
        return graph
    stepper.state.clear()  # the optimizer has no state for parameters that no loss reaches
    return trace_step(run, [module], input_elements)


def _first_sentence(error: Exception) -> str:
    """Return torch's description of the error, without its advice for authors of kernels."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.partition(". ")[0].rstrip(".")
