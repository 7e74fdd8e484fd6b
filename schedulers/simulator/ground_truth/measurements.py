"""Measurements of models: step time, utilization and memory solo, slowdowns when co-located."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from presage.features.job.job_description import JobFeatures
from presage.schedulers.core.job import Job
from presage.schedulers.simulator.ground_truth.scaling_curve import ScalingCurve

ModelOnKind = tuple[str, str]  # a model and a kind of device
Colocated = tuple[str, tuple[str, ...]]  # a kind of device and the sorted models on it


@dataclass(frozen=True)
class Measurements:
    """Measurements of models, solo on an exclusive device and co-located.

    All mappings but ``features`` and ``step_s`` hold measured entries only.

    Attributes
    ----------
    features : mapping of str to JobFeatures
        Input of the forecasts, by model.
    step_s : mapping of (model, kind) to float
        Median solo step time.
    step_high_s, setup_s : mapping of (model, kind) to float
        90th percentile of the step time, and the time before the first step.
    busy : mapping of (model, kind) to float
        Solo compute utilization, within [0, 1].
    memory_bytes : mapping of (model, kind) to int
        Peak memory.
    slowdowns : mapping of (kind, models) to tuple of float
        Co-located over solo step time, in the order of the models.
    too_large : set of (kind, models)
        Co-locations that do not fit into the device's memory.
    spread : mapping of (model, kind, devices) to float
        Step time on several nodes over that on one node, with as many devices.
    scaling : mapping of (model, kind) to ScalingCurve
        Step time by number of devices and nodes, shared by all batch sizes of a model.
    """

    features: Mapping[str, JobFeatures]
    step_s: Mapping[ModelOnKind, float]
    step_high_s: Mapping[ModelOnKind, float] = field(default_factory=dict)
    setup_s: Mapping[ModelOnKind, float] = field(default_factory=dict)
    busy: Mapping[ModelOnKind, float] = field(default_factory=dict)
    memory_bytes: Mapping[ModelOnKind, int] = field(default_factory=dict)
    slowdowns: Mapping[Colocated, tuple[float, ...]] = field(default_factory=dict)
    too_large: frozenset[Colocated] = frozenset()
    spread: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    scaling: Mapping[ModelOnKind, ScalingCurve] = field(default_factory=dict)

    def models_on(self, kind: str) -> list[str]:
        """Return the sorted models whose step was timed on a kind of device."""
        return sorted(model for model, on in self.step_s if on == kind)

    def traced_kind(self, job: Job, first: str) -> str:
        """Return the kind of device to which the traced duration of a job applies.

        That is ``first``. For a job that may not use ``first``, it is the first of the job's kinds
        on which its model was timed.
        """
        if not job.kinds or first in job.kinds:
            return first
        return next((kind for kind in job.kinds if (job.model, kind) in self.step_s), first)

    def kinds(self) -> list[str]:
        """Return the sorted kinds of devices on which a step was timed."""
        return sorted({kind for _, kind in self.step_s})
