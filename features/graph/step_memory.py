"""What the bytes of a step are held for, from the trace of a module or by rule from a file."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from presage.errors import GraphError


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of one step, by what holds them.

    Parameters, optimizer state and batch are held throughout. The forward pass ends with
    activations besides, the backward pass with gradients; ``workspace_bytes`` is what the peak
    needs beyond the larger of the two, so that ``peak_bytes`` is the most alive at once.
    What a kernel takes for itself (a convolution's workspace) and an allocator's rounding are
    not in it: no tensor shows them.

    Attributes
    ----------
    parameter_bytes : int
        Parameters and buffers, trained or not; two names of one tensor count once.
    gradient_bytes : int
        Gradients of parameters when the optimizer starts, or where there is none, when the step
        ends. 0 for inference.
    optimizer_state_bytes : int
        What the optimizer keeps from step to step, without its counters of steps.
    activation_bytes : int
        Alive when the forward pass ends, beyond the above and the batch: outputs that the
        backward pass will read, and half-precision copies of weights. Where a step has several
        backward passes, the largest. 0 for inference.
    workspace_bytes : int
        Outputs in passing at the peak: gradients of activations, an optimizer's intermediate
        results; for inference, the activations.
    batch_bytes : int
        What the step is given: inputs, and targets where the step itself reads them.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    activation_bytes: int
    workspace_bytes: int
    batch_bytes: int

    def __post_init__(self) -> None:
        check_held(astuple(self))

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at once."""
        return peak_bytes(
            self.parameter_bytes,
            self.gradient_bytes,
            self.optimizer_state_bytes,
            self.activation_bytes,
            self.workspace_bytes,
            self.batch_bytes,
        )


HOLDERS = tuple(field.name for field in fields(MemoryEstimate))


def check_held(held: tuple[int, ...]) -> None:
    """Raise an error if one of the bytes of a step, in the order of ``HOLDERS``, is negative.

    Raises
    ------
    GraphError
        Names the first negative field.
    """
    if min(held) >= 0:
        return
    for name, value in zip(HOLDERS, held, strict=True):
        if value < 0:
            raise GraphError(
                f"memory estimate: {name}={value}, must be >= 0; "
                "give 0 for what a step does not hold"
            )


def peak_bytes(
    parameters: int,
    gradients: int,
    optimizer_state: int,
    activations: int,
    workspace: int,
    batch: int,
) -> int:
    """Most bytes alive at once, by what holds them: the fields of :class:`MemoryEstimate`."""
    return parameters + optimizer_state + batch + max(activations, gradients) + workspace
