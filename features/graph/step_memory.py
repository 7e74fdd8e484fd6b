"""Memory components of a step, from the trace of a module or derived from a model file."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from presage.errors import GraphError


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of one step by memory component.

    Parameters, optimizer state and batch are held throughout. The forward pass ends with
    activations in addition, the backward pass with gradients; ``workspace_bytes`` is what the
    peak needs beyond the larger of the two, so ``peak_bytes`` is the maximum alive at once.
    Kernel workspaces (of a convolution) and an allocator's rounding are not included, because no
    tensor holds them.

    Attributes
    ----------
    parameter_bytes : int
        Parameters and buffers, trained or not; two names of one tensor count once.
    gradient_bytes : int
        Gradients of parameters when the optimizer starts or, without an optimizer, at the end of
        the step. 0 for inference.
    optimizer_state_bytes : int
        State of the optimizer between steps, without its step counters.
    activation_bytes : int
        Bytes alive at the end of the forward pass, beyond the above and the batch: outputs that
        the backward pass reads, and half-precision copies of weights. With several backward
        passes in a step, the largest. 0 for inference.
    workspace_bytes : int
        Temporary outputs at the peak: gradients of activations, an optimizer's temporaries; for
        inference, the activations.
    batch_bytes : int
        Inputs of the step, and targets if the step reads them.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    activation_bytes: int
    workspace_bytes: int
    batch_bytes: int

    def __post_init__(self) -> None:
        check_components(astuple(self))

    @property
    def peak_bytes(self) -> int:
        """Maximum bytes alive at once."""
        return peak_bytes(
            self.parameter_bytes,
            self.gradient_bytes,
            self.optimizer_state_bytes,
            self.activation_bytes,
            self.workspace_bytes,
            self.batch_bytes,
        )


MEMORY_COMPONENTS = tuple(field.name for field in fields(MemoryEstimate))


def check_components(component_bytes: tuple[int, ...]) -> None:
    """Raise an error if a memory component is negative.

    Parameters
    ----------
    component_bytes : tuple of int
        Bytes of a step, in the order of ``MEMORY_COMPONENTS``.

    Raises
    ------
    GraphError
        Names the first negative component.
    """
    if min(component_bytes) >= 0:
        return
    for name, value in zip(MEMORY_COMPONENTS, component_bytes, strict=True):
        if value < 0:
            raise GraphError(
                f"memory estimate: {name}={value}, must be >= 0; "
                "use 0 for a component that the step does not have"
            )


def peak_bytes(
    parameters: int,
    gradients: int,
    optimizer_state: int,
    activations: int,
    workspace: int,
    batch: int,
) -> int:
    """Return the maximum bytes alive at once from the fields of :class:`MemoryEstimate`."""
    return parameters + optimizer_state + batch + max(activations, gradients) + workspace
