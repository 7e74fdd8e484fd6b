"""Trials of the benchmark: models that no campaign measured, most of them waiting for samples."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from benchmarks.ray_trials.device_release import FAMILIES
from presage.cli.options.job_source import read_job
from presage.features.device.device import Device
from presage.features.job.data_loading import DataLoading
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.pipelines.profiling.zoo import all_configs
from presage.serving.predictor.prediction_backend import PredictionBackend

SEED = 20
KINDS, BUSY_KINDS, REPEATS = 10, 2, 2  # kinds of trials, of which some never wait; trials of each
WAITS = (0.5, 0.75)  # share of a step that the others wait for samples, as drawn
LENGTH_S = 25.0  # predicted time of a trial's steps
STEP_S = (0.01, 0.1)  # predicted steps of the models that are drawn from


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of trial.

    Attributes
    ----------
    job : str
        Name in the job zoo.
    wait_s : float
        Seconds that each step waits for its samples, in which it occupies no core.
    """

    job: str
    features: JobFeatures
    wait_s: float
    iterations: int

    @property
    def loading(self) -> DataLoading | None:
        """How it loads its samples."""
        if not self.wait_s:
            return None
        batch = self.features.job.batch_size
        return DataLoading(
            sample_s=self.wait_s / batch, sample_cpu_s=0.0, workers=0, batch_size=batch
        )


def draw_kinds(
    predictor: PredictionBackend, device: Device, measured: Collection[str]
) -> list[Kind]:
    """Return the kinds of trials, drawn by a seed from the jobs that were not measured."""
    draw = random.Random(SEED)
    names = [config.name for config in all_configs() if config.family in FAMILIES]
    candidates = sorted(name for name in names if name not in measured)
    draw.shuffle(candidates)
    kinds: list[Kind] = []
    for name in candidates:
        features = read_job(name)
        (found,) = predictor.predict([Placement(features, device)])
        step_s = found.step_time_s.median
        if not STEP_S[0] <= step_s <= STEP_S[1]:
            continue
        share = 0.0 if len(kinds) < BUSY_KINDS else draw.uniform(*WAITS)
        wait_s = step_s * share / (1 - share)
        kinds.append(Kind(name, features, wait_s, round(LENGTH_S / (step_s + wait_s))))
        if len(kinds) == KINDS:
            break
    return kinds


def trials_in_order() -> list[int]:
    """Return the kind of each trial, in an order drawn by the seed."""
    order = [kind for kind in range(KINDS) for _ in range(REPEATS)]
    random.Random(SEED).shuffle(order)
    return order
