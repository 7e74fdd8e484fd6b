"""Family of training jobs: one architecture in several sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from presage.pipelines.profiling.running.training_step import TrainingStep


@dataclass(frozen=True)
class Family:
    """One architecture, its sizes, and its customary training.

    Attributes
    ----------
    variants : dict of str to dict of str to int
        Constructor sizes of each small variant, by its short name ("w64-d3": width 64, depth 3).
    batch_sizes : tuple of int
        Every small variant is profiled at each of these.
    optimizer : str
        The customary optimizer; "inference" for a family that is never trained.
    large, large_batch_sizes
        The same for the sizes in use and in publications, for a GPU: ``variants`` occupy a
        processor for milliseconds, ``large`` a data-centre GPU.
    build : callable
        ``build(batch_size=, optimizer=, **sizes)`` creates the model, its data and its step.
    """

    name: str
    variants: dict[str, dict[str, int]]
    batch_sizes: tuple[int, ...]
    optimizer: str
    build: Callable[..., TrainingStep]
    large: dict[str, dict[str, int]] = field(default_factory=dict)
    large_batch_sizes: tuple[int, ...] = ()

    def sizes(self, variant: str) -> dict[str, int]:
        """Return the constructor sizes of a small or large variant; KeyError if unknown."""
        return (self.variants | self.large)[variant]
