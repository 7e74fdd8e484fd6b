"""Does a job fit into a device's memory: the memory network's upper bound against the device.

A job is said to fit if the upper end of its 90 % interval, which 95 % of jobs stay below, and what
the trace sees alive at once are both no more than the device lets jobs have. 95 % is the highest
level that is forecast: a wrong "fits" ends a run, a wrong refusal costs a larger device. The
network learns from jobs that ran. Those hold less than a device, so far beyond one it has nothing
to go by; the live bytes of the trace are exact there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from presage.features.tables.campaign import Campaign
from presage.models.calibration.conformal import conformal_margin
from presage.models.training.fit import LEVELS
from presage.models.training.splits import Folds
from presage.pipelines.benchmark.benchmark_rows import Rows, solo_rows
from presage.pipelines.benchmark.benchmark_splits import make_folds, novelty, split_folds
from presage.pipelines.benchmark.benchmark_task import Forecasts
from presage.pipelines.benchmark.solo import SoloTask
from presage.system.arrays import Array, Mask
from presage.system.text.progress import Progress

LEVEL = 0.95
# The fullest that NVIDIA's tools were seen to read a device, of what its name says: 40,363 MiB of
# an A100's 40,960, among 3,870 runs of which 132 filled it. The driver keeps the rest.
USABLE = 0.985
# Labels that cannot be: 99.5 % of the jobs that ran hold less than so often what is alive at once
# and a context, so one that would not fill the device even then has not failed for want of memory;
# and nothing ran in less than what is alive at once.
LARGEST_OF_LIVE = 3.0


@dataclass(frozen=True)
class FitsTask:
    """The memory task, asked about jobs that ran and about jobs that ran out of memory."""

    memory: SoloTask
    needs_solo_runs: bool = False

    @property
    def unit(self) -> str:
        """Unit of the memory."""
        return self.memory.unit

    @property
    def scale(self) -> float:
        """Scale of the memory task."""
        return self.memory.scale

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits of the memory task."""
        return self.memory.splits

    def rows(self, campaigns: Sequence[Campaign]) -> Rows:
        """Return successful runs with their memory, and out-of-memory runs without."""
        memory = self.memory
        return solo_rows(campaigns, memory.quantity, memory.required, failures=("out-of-memory",))

    def repeats(self, campaigns: Sequence[Campaign]) -> list[Array]:
        """Return the repeated measurements of the memory task."""
        return self.memory.repeats(campaigns)

    def cross_forecast(self, rows: Rows, split: str, *, seed: int, progress: Progress) -> Forecasts:
        """Forecast every row with models not trained on similar rows, and other folds' margins."""
        answers = self.memory.cross_forecast(rows, split, seed=seed, progress=progress)
        folds = split_folds(rows.metadata, split, seed=seed)
        bounds = {
            name: _bounds_out_of_fold(rows.measured, guess, folds)
            for name, guess in answers.baselines.items()
        }
        return decided(answers, rows, bounds)

    def forecast(self, train: Rows, test: Rows, *, seed: int, progress: Progress) -> Forecasts:
        """Forecast rows of ``test``; baselines get margins from left-out training rows."""
        answers = self.memory.forecast(train, test, seed=seed, progress=progress)
        ran = train.take(np.isfinite(train.measured))
        folds = make_folds(list(ran.metadata[novelty(ran.metadata, test.metadata)]), seed=seed)
        known = self.memory.guesses(ran, folds)
        bounds = {
            name: guess * _factor(ran.measured, known[name])
            for name, guess in answers.baselines.items()
        }
        return decided(answers, test, bounds)


def _bounds_out_of_fold(measured: Array, guess: Array, folds: Folds) -> Array:
    bounds = np.empty(len(guess))
    for fold in np.unique(folds):
        own, others = folds == fold, (folds != fold) & np.isfinite(measured)
        bounds[own] = guess[own] * _factor(measured[others], guess[others])
    return bounds


def _factor(measured: Array, guess: Array) -> float:
    """Return the factor on a guess that keeps the required share of measurements below it."""
    y, high = np.log(measured), np.log(guess)
    return float(np.exp(conformal_margin(y, np.full(len(y), -np.inf), high, coverage=LEVEL)))


def decided(answers: Forecasts, rows: Rows, bounds: Mapping[str, Array]) -> Forecasts:
    """Add figures of the decisions that follow from upper bounds of the memory."""
    live = np.array([one.job.peak_live_bytes for one in rows.placements], dtype=np.float64)
    memory = np.array([one.device.memory_bytes for one in rows.placements], dtype=np.float64)
    context = np.array([one.device.context_bytes for one in rows.placements], dtype=np.float64)
    ran = np.isfinite(rows.measured)
    can_be = np.where(ran, live <= memory, context + LARGEST_OF_LIVE * live >= memory)
    upper = {"mlp": answers.quantiles[:, LEVELS.index(LEVEL)], **bounds}
    more = {}
    for name, bound in upper.items():
        predicted = np.maximum(bound, live) <= USABLE * memory
        more[name] = {
            **decision_figures(predicted, ran),
            "impossible_labels": float((~can_be).sum()),
            **{
                f"{key}_of_possible": value
                for key, value in decision_figures(predicted[can_be], ran[can_be]).items()
            },
        }
    return replace(answers, more=more)


def decision_figures(predicted: Mask, ran: Mask) -> dict[str, float]:
    """Return how often a decision is wrong, in percent.

    Parameters
    ----------
    predicted, ran : ndarray of bool, shape (rows,)
        Whether a job was predicted to fit, and whether it did.

    Returns
    -------
    dict of str to float
        ``wrong_fits``: of the rows predicted to fit, those that did not. ``wrong_refusals``: of
        the rows predicted not to fit, those that did. ``refused``: of the rows that fit, those
        predicted not to.
    """
    return {
        "wrong_fits": _percent(predicted & ~ran, predicted),
        "wrong_refusals": _percent(~predicted & ran, ~predicted),
        "refused": _percent(~predicted & ran, ran),
    }


def _percent(part: Mask, whole: Mask) -> float:
    """Return a percentage; 0 of an empty total."""
    return float(100 * part.sum() / max(whole.sum(), 1))
