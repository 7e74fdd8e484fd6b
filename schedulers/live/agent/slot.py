"""A device as an agent gives it to tasks: a GPU, or some of the machine's processors."""

from __future__ import annotations

from dataclasses import dataclass

from presage.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Slot:
    """A device of a node.

    Attributes
    ----------
    kind : str
        As in the catalogue of :mod:`presage.features.device.device`, such as "h100".
    cpus : tuple of int or None
        Numbers of the processors that it is; None of a GPU: its tasks may use any.
    cuda : int or None
        Number of the GPU by its place on the bus.
    """

    kind: str
    memory_bytes: int
    cpus: tuple[int, ...] | None = None
    cuda: int | None = None

    def __post_init__(self) -> None:
        if not self.kind or self.memory_bytes < 1:
            raise ConfigError(
                f"device {self.kind!r} with {self.memory_bytes} bytes: give a kind, and its memory"
            )
        if (self.cpus is None) == (self.cuda is None):
            raise ConfigError(f"device {self.kind!r}: it is either processors or a GPU")
        if self.cpus is not None and len(set(self.cpus)) != len(self.cpus):
            raise ConfigError(f"device {self.kind!r}: a processor twice among {self.cpus}")
