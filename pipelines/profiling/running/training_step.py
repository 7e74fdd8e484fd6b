"""Training step that the profiler runs and the tracer traces: one step on synthetic data.

All code here also runs under ``torch.device("meta")``, where no weight is allocated: shapes do not
depend on values, and every tensor comes from a factory that uses the default device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim


@dataclass(frozen=True)
class TrainingStep:
    """A job ready to run: forward, backward, optimizer; for inference forward only.

    Attributes
    ----------
    modules : tuple of nn.Module
        Modules with all parameters of the job.
    run : callable
        One complete step; the data are created before and stay in place.
    input_elements : int
        Input elements of one sample, without the batch dimension.
    """

    modules: tuple[nn.Module, ...]
    run: Callable[[], None]
    input_elements: int

    def __post_init__(self) -> None:
        if self.input_elements < 1:
            raise ValueError(
                f"input_elements={self.input_elements}, must be >= 1; "
                "count the elements of one sample of the input"
            )

    def parameters(self) -> list[nn.Parameter]:
        """Return all parameters of the job."""
        return [parameter for module in self.modules for parameter in module.parameters()]


INFERENCE = "inference"  # instead of an optimizer: the job only runs the forward pass

# Learning rates do not affect measurements; these keep a real run from diverging.
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], optim.Optimizer]] = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "adam": lambda parameters: optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: optim.AdamW(parameters, lr=1e-3),
}


def make_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """Create an optimizer by name; its first step allocates its state.

    Raises
    ------
    ValueError
        ``name`` is not a key of ``OPTIMIZERS``.
    """
    if name not in OPTIMIZERS:
        raise ValueError(
            f"optimizer {name!r} is not known; use one of {', '.join(OPTIMIZERS)}, "
            "or add it to OPTIMIZERS in pipelines/profiling/running/training_step.py"
        )
    return OPTIMIZERS[name](parameters)


def supervised(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    loss: Callable[[Any], Tensor],
    *,
    optimizer: str,
    input_elements: int,
) -> TrainingStep:
    """Return the step of one model with one optimizer, or its inference, on a fixed batch.

    Parameters
    ----------
    model : nn.Module
        Called as ``model(*inputs)``.
    inputs : tuple of Tensor, each of shape (B, ...)
        The resident batch.
    loss : callable
        Scalar loss of the model's output; includes the targets.
    optimizer : str
        A key of ``OPTIMIZERS``, or ``INFERENCE`` to run only the model in evaluation mode.
    input_elements : int
        Input elements of one sample.
    """
    if optimizer == INFERENCE:
        return inference(model, inputs, input_elements=input_elements)
    stepper = make_optimizer(optimizer, model.parameters())

    def run() -> None:
        stepper.zero_grad(set_to_none=True)
        loss(model(*inputs)).backward()  # type: ignore[no-untyped-call]
        stepper.step()

    return TrainingStep(modules=(model,), run=run, input_elements=input_elements)


def inference(model: nn.Module, inputs: tuple[Tensor, ...], *, input_elements: int) -> TrainingStep:
    """Return the step of a model in inference, without gradients."""
    model.eval().requires_grad_(False)

    def run() -> None:
        with torch.no_grad():
            model(*inputs)

    return TrainingStep(modules=(model,), run=run, input_elements=input_elements)
