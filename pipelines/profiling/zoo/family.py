"""Family of training jobs: one architecture in several sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from presage.pipelines.profiling.running.training_step import TrainingStep

_IN_CONTEXT = re.compile(r"(?P<model>.+)-(?P<letter>[a-z])(?P<tokens>\d{1,9})")


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
    context : str
        Constructor size that is the context length in tokens; "" for a family without one.
    served, large_served : dict of str to dict of str to int
        Models without that size, by their short name. Each has a variant for every context length,
        such as "w256-d4-k2-c512"; they are measured only by campaigns that list context lengths.
    """

    name: str
    variants: dict[str, dict[str, int]]
    batch_sizes: tuple[int, ...]
    optimizer: str
    build: Callable[..., TrainingStep]
    large: dict[str, dict[str, int]] = field(default_factory=dict)
    large_batch_sizes: tuple[int, ...] = ()
    context: str = ""
    served: dict[str, dict[str, int]] = field(default_factory=dict)
    large_served: dict[str, dict[str, int]] = field(default_factory=dict)

    def sizes(self, variant: str) -> dict[str, int]:
        """Return the constructor sizes of a variant.

        Raises
        ------
        KeyError
            There is no such variant.
        """
        known = self.variants | self.large
        if variant in known:
            return known[variant]
        return self._sizes_in_context(variant)

    def _sizes_in_context(self, variant: str) -> dict[str, int]:
        match = _IN_CONTEXT.fullmatch(variant)
        models = self.served | self.large_served
        if match is None or match["letter"] != self.context[:1] or match["model"] not in models:
            raise KeyError(variant)
        return models[match["model"]] | {self.context: int(match["tokens"])}

    def in_contexts(self, contexts: Sequence[int], *, large: bool) -> list[str]:
        """Return the variants with these context lengths, in a fixed order."""
        models = sorted(self.large_served if large else self.served)
        return [f"{model}-{self.context[0]}{tokens}" for model in models for tokens in contexts]
