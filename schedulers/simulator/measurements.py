"""What was measured of models: how fast, how busy and how large alone, and how slow together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from presage.features.job.job import JobFeatures
from presage.schedulers.core.job import Job

OnKind = tuple[str, str]  # a model, and a kind of device
Together = tuple[str, tuple[str, ...]]  # a kind of device, and the models on it, sorted


@dataclass(frozen=True)
class Measurements:
    """Of models, each alone on a whole device, and of some together on one.

    Attributes
    ----------
    features : mapping of str to JobFeatures
        By model: what its forecasts are made of.
    step_s : mapping of (model, kind) to float
        Step time alone.
    step_high_s, setup_s : mapping of (model, kind) to float
        Of nine steps in ten the longest, and what passes before the first; where they were
        measured.
    busy : mapping of (model, kind) to float
        Compute utilization alone, within [0, 1]; of those where it was measured.
    memory_bytes : mapping of (model, kind) to int
        Peak memory; of those where it was measured.
    slowdowns : mapping of (kind, models) to tuple of float
        Step time together over that alone, in the order of the models.
    too_large : set of (kind, models)
        Which do not fit into the device's memory together.
    spread : mapping of (model, kind, devices) to float
        Step time of so many devices on nodes of their own, over that of as many on one.
    """

    features: Mapping[str, JobFeatures]
    step_s: Mapping[OnKind, float]
    step_high_s: Mapping[OnKind, float] = field(default_factory=dict)
    setup_s: Mapping[OnKind, float] = field(default_factory=dict)
    busy: Mapping[OnKind, float] = field(default_factory=dict)
    memory_bytes: Mapping[OnKind, int] = field(default_factory=dict)
    slowdowns: Mapping[Together, tuple[float, ...]] = field(default_factory=dict)
    too_large: frozenset[Together] = frozenset()
    spread: Mapping[tuple[str, str, int], float] = field(default_factory=dict)

    def models_on(self, kind: str) -> list[str]:
        """Models whose step was timed on a kind of device, sorted."""
        return sorted(model for model, on in self.step_s if on == kind)

    def traced_kind(self, job: Job, first: str) -> str:
        """On which a job runs as long as its trace says.

        That is ``first``; or, of a job that may not use it, the first of the job's kinds that its
        model was timed on.
        """
        if not job.kinds or first in job.kinds:
            return first
        return next((kind for kind in job.kinds if (job.model, kind) in self.step_s), first)

    def kinds(self) -> list[str]:
        """Kinds of devices that a step was timed on, sorted."""
        return sorted({kind for _, kind in self.step_s})
