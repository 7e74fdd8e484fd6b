"""Policy that chooses the next job, its devices or waiting by a learned scorer."""

from __future__ import annotations

from itertools import compress
from pathlib import Path
from random import Random

import numpy as np

from presage.errors import ReleaseError
from presage.schedulers.core.action import Action, Start
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.plan import Plan
from presage.schedulers.core.state import State
from presage.schedulers.policies.failures.device_order import Mask, choose_devices
from presage.schedulers.policies.failures.device_policy import full_devices
from presage.schedulers.policies.failures.expected import Expected
from presage.schedulers.policies.failures.hazards import HazardSource
from presage.schedulers.policies.failures.learnt.job_rows import JobRows
from presage.schedulers.policies.failures.learnt.placement_explanation import (
    explain_start,
    explain_wait,
)
from presage.schedulers.policies.failures.learnt.placement_features import Observed, Observer
from presage.schedulers.policies.failures.learnt.placement_release import (
    PlacementRelease,
    load_placement_release,
    placement_schema_hash,
)
from presage.schedulers.policies.failures.learnt.placement_scorer import PlacementScorer
from presage.schedulers.policies.failures.learnt.placement_view import (
    PlacementView,
    read_view,
    used_interval_s,
)
from presage.system.arrays import Array, Int64s

NO_RELEASE = "no placement release is given; write learnt:release=FOLDER"


class Learnt(Expected):
    """Policy that starts the job to which a learned scorer gives the highest score, or waits.

    A job gets the idle devices with the lowest failure rates. Jobs of a higher priority are scored
    before others. Jobs without a forecast are started last, as by ``expected``.

    The policy decides as ``expected`` without a release, if the release has another feature schema,
    if the number of devices or jobs is out of its domain, and if its scores are not numbers.
    :attr:`warning` has the reason.

    Parameters
    ----------
    release : str
        Folder of a placement release.
    hazards : HazardSource, optional
        Source of the failure rates; by default the forecasts.

    Raises
    ------
    ReleaseError
        The folder is no placement release, or is corrupt.
    ConfigError
        ONNX Runtime is not installed.
    """

    def __init__(self, release: str = "", hazards: HazardSource | None = None) -> None:
        found = load_placement_release(Path(release)) if release else None
        if found is None:
            super().__init__(hazards=hazards)
        else:
            super().__init__(
                found.exponent, found.patience, found.repair_s, sets_interval=found.sets_interval,
                hazards=hazards,
            )  # fmt: skip
        self._release = found
        self._scorer = None if found is None else PlacementScorer(found.model)
        self._rows = JobRows()
        self._explanations: dict[str, str] = {}
        # Observations of jobs that wait; their texts are made when asked for.
        self._waiting: list[tuple[PlacementView, Observed, Int64s]] = []
        self._warning = ""

    @property
    def warning(self) -> str:
        """Reason for which the last decision, or an earlier one, was that of ``expected``."""
        return self._warning

    def explanation(self, job_id: str) -> str:
        """Return why a job was started where it runs, or why the last decision left it waiting."""
        if job_id in self._explanations or self._release is None:
            return self._explanations.get(job_id, "")
        for view, observed, rows in self._waiting:
            for row in rows.tolist():
                if view.jobs[observed.fit[row]].job_id == job_id:
                    columns = observed.rates_per_s, observed.here_s, observed.later_s
                    figures = (float(values[row]) for values in columns)
                    return explain_wait(self._release.release_id, *figures)
        return ""

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Action]:
        """Start jobs by their scores until the highest score is that of waiting."""
        running = state.running
        self._explanations = {
            job_id: text for job_id, text in self._explanations.items() if job_id in running
        }
        self._waiting = []
        return super().decide(state, forecasts, rng)

    def start(
        self, plan: Plan, state: State, forecasts: Forecasts, usable: Mask, rates: Array
    ) -> None:
        """Start jobs on usable devices."""
        problem = self._problem(state)
        if problem:
            self._fall_back(problem, plan, state, forecasts, usable, rates)
            return
        view = read_view(
            state, forecasts, rates, self._repair_s, usable, sets_interval=self._sets_interval,
            known_rows=self._rows,
        )  # fmt: skip
        try:
            self._start_scored(plan, state, view, usable)
        except ReleaseError as error:
            self._fall_back(f"{error}", plan, state, forecasts, usable, rates)
            return
        if view.others:
            self.fill(plan, state, view.others, usable, rates)

    def _problem(self, state: State) -> str:
        """Return why the scorer cannot be used in a state; "" if it can."""
        if self._release is None:
            return NO_RELEASE
        if self._release.schema_hash != placement_schema_hash():
            return (
                f"its features are of schema {self._release.schema_hash}, this version has "
                f"{placement_schema_hash()}; train it again with `dvc repro placement`"
            )
        jobs = len(state.pending) + len(state.running)
        return self._release.domain.problem(state.cluster.devices, jobs)

    def _fall_back(
        self,
        problem: str,
        plan: Plan,
        state: State,
        forecasts: Forecasts,
        usable: Mask,
        rates: Array,
    ) -> None:
        """Start jobs as the policy ``expected``, which has the rule of the release."""
        self._warning = f"{_named(self._release)} is not used: {problem}; `expected` decides"
        self._waiting = []
        before = len(plan.actions)
        super().start(plan, state, forecasts, usable, rates)
        for action in plan.actions[before:]:
            if isinstance(action, Start):
                self._explanations[action.job_id] = self._warning

    def _start_scored(self, plan: Plan, state: State, view: PlacementView, usable: Mask) -> None:
        """Start jobs by their scores; those of a higher priority first."""
        assert self._release is not None
        observer = Observer(view, self._release.exponent, self._release.patience)
        pending = [*compress(view.jobs, ~view.is_running)]
        urgencies = [(not job.latency_sensitive, -job.priority) for job in pending]
        for urgency in sorted(set(urgencies)):
            candidates = np.zeros(len(view.jobs), bool)
            candidates[: len(pending)] = [one == urgency for one in urgencies]
            while self._start_next(plan, state, observer, candidates, usable):
                pass

    def _start_next(
        self, plan: Plan, state: State, observer: Observer, candidates: Mask, usable: Mask
    ) -> bool:
        """Start one of the candidates, or remove it if it cannot start; return False to wait."""
        assert self._release is not None
        view, fit = observer.view, observer.fitting()
        if not candidates[fit].any():
            return False
        observed = observer.observe(fit)
        rows = np.flatnonzero(candidates[fit])
        action = self._choose(observer, observed, rows)
        if action == len(rows):
            self._waiting.append((view, observed, rows))
            return False
        row = int(rows[action])
        j = int(fit[row])
        job = view.jobs[j]
        devices = choose_devices(job, int(view.gpus[j]), usable, view.rates_per_s, state.cluster)
        if devices is None or not plan.start(job, full_devices(devices, state)):
            candidates[j] = False
            return True
        self._explanations[job.job_id] = explain_start(
            self._release.release_id, observer, observed, row, devices, state.cluster
        )
        usable[devices] = False
        rate = sum(view.rates_per_s[devices].tolist())
        interval_s = used_interval_s(job.checkpointing, rate, sets_interval=self._sets_interval)
        view.start(j, devices, interval_s)
        return True

    def _choose(self, observer: Observer, observed: Observed, rows: Int64s) -> int:
        """Return which of these rows has the highest score; their number to wait.

        Raises
        ------
        ReleaseError
            A score is not a number.
        """
        assert self._scorer is not None
        allowed = np.ones(len(rows) + 1, bool)
        allowed[-1] = observed.may_wait
        advised = np.zeros(len(allowed), bool)
        advised[observer.rule_action(observed, rows)] = True
        logits = self._scorer.logits(
            observed.jobs[rows], observed.cluster, allowed, advised & allowed
        )
        if not np.isfinite(logits[allowed]).all():
            raise ReleaseError("its scores are not finite numbers")
        return int(np.where(allowed, logits, -np.inf).argmax())


def _named(release: PlacementRelease | None) -> str:
    return "the scorer" if release is None else f"placement release {release.release_id}"
