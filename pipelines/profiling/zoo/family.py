"""A family of training jobs: one architecture in several sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from presage.pipelines.profiling.running.training_step import TrainingStep


@dataclass(frozen=True)
class Family:
    """One architecture, the sizes it is built in, and how it is customarily trained.

    Attributes
    ----------
    variants : dict of str to dict of str to int
        Constructor sizes of each small variant, by its short name ("w64-d3": width 64, depth 3).
    batch_sizes : tuple of int
        Every small variant is profiled at each of them.
    optimizer : str
        The customary one; "inference" for a family that is never trained.
    large, large_batch_sizes
        The same of the sizes in use and in print, for a GPU: ``variants`` keep a processor busy
        for milliseconds, ``large`` a data-centre GPU.
    build : callable
        ``build(batch_size=, optimizer=, **sizes)`` makes the model, its data and its step.
    """

    name: str
    variants: dict[str, dict[str, int]]
    batch_sizes: tuple[int, ...]
    optimizer: str
    build: Callable[..., TrainingStep]
    large: dict[str, dict[str, int]] = field(default_factory=dict)
    large_batch_sizes: tuple[int, ...] = ()

    def sizes(self, variant: str) -> dict[str, int]:
        """Constructor sizes of a variant, small or large; KeyError without it."""
        return (self.variants | self.large)[variant]
