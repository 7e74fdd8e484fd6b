"""Gymnasium environment ``presage/Placement-v0``: placement decisions in the real simulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from presage.placement.core.batches import STRESS, BatchSettings, draw_batches
from presage.placement.core.clusters import makespans_s
from presage.placement.core.real_batch import real_simulation
from presage.placement.core.rules import LARGEST, LEAST_FAILING, RULES, Rule, run_rule, typed
from presage.placement.learnt.observation import (
    can_start,
    observe,
    rule_action,
)
from presage.placement.learnt.state_records import records_of
from presage.schedulers.core.action import Start
from presage.schedulers.core.state import State
from presage.schedulers.policies.failures.device_policy import FirstFit, full_devices
from presage.schedulers.policies.failures.learnt.placement_features import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
)

ENVIRONMENT = "presage/Placement-v0"
Observed = dict[str, np.ndarray]


class PlacementEnvironment(gymnasium.Env[Observed, np.int64]):  # type: ignore[misc]
    """Batch of jobs on failing GPUs; an action starts a pending job, or waits for the next event.

    Job i of the observation is the i-th of the batch; the last action waits. ``allowed`` says which
    actions are possible, and ``advised`` is the action of the rule. Any other action counts as
    waiting, or as the first possible start while no job runs. A started job gets the idle GPUs with
    the lowest failure rates. The reward comes at the end: 1 minus the makespan over that of the
    rule ``least-failing`` on the same failures.

    Parameters
    ----------
    settings : BatchSettings
        Distribution of the batches; ``reset(seed=...)`` draws one.
    rule : Rule
        Analytic rule that advises.

    Attributes
    ----------
    batches : Batches
        The batch of this episode, after ``reset``; other rules can be run on it.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        settings: BatchSettings = STRESS,
        rule: Rule = Rule(order=LARGEST, exponent=0.5, choice=LEAST_FAILING),  # noqa: B008
    ) -> None:
        self._settings, self._rule = settings, typed(rule)
        jobs = settings.jobs
        self.observation_space = spaces.Dict(
            {
                "jobs": spaces.Box(-np.inf, np.inf, (jobs, len(JOB_FEATURES)), np.float32),
                "cluster": spaces.Box(-np.inf, np.inf, (len(CLUSTER_FEATURES),), np.float32),
                "allowed": spaces.MultiBinary(jobs + 1),
                "advised": spaces.MultiBinary(jobs + 1),
            }
        )
        self.action_space = spaces.Discrete(jobs + 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Draw a batch and return the first observation."""
        super().reset(seed=seed)
        self.batches = draw_batches(self._settings, 1, seed=int(self.np_random.integers(2**31)))
        self._simulation = real_simulation(self.batches, 0, FirstFit())
        self._moments: Iterator[State] = self._simulation.moments()
        self._next_moment()
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        """Start a job or wait, and return the next observation, the reward and the end."""
        allowed = self._allowed
        chosen = int(action) if allowed[int(action)] else len(allowed) - 1
        if not allowed[chosen]:
            chosen = int(allowed.argmax())
        if chosen < len(allowed) - 1:
            self._start(chosen)
            if not can_start(self._clusters, 0):
                self._next_moment()
        else:
            self._next_moment()
        is_over = self._state is None
        info = {"makespan_s": self._makespan_s()} if is_over else {}
        return self._observation(), self._reward() if is_over else 0.0, is_over, False, info

    def _start(self, number: int) -> None:
        state = self._state
        assert state is not None
        devices = self._clusters.gpus["safest"][0]
        idle = devices[self._clusters.gpus["holder"][0][devices] == -1]
        needed = int(self.batches.gpus[0, number])
        self._simulation.take([Start(str(number), full_devices(idle[:needed], state))])
        self._read(state)

    def _next_moment(self) -> None:
        """Move the simulator to the next moment in which a job can start, or to the end."""
        self._state = None
        for state in self._moments:
            self._read(state)
            if can_start(self._clusters, 0):
                self._state = state
                return

    def _read(self, state: State) -> None:
        self._clusters, jobs = records_of(
            state,
            self._simulation.forecasts,
            self.batches.hazard_per_s[0],
            float(self.batches.repair_s[0]),
        )
        self._numbers = [int(job.job_id) for job in jobs]

    def _observation(self) -> Observed:
        jobs = self._settings.jobs
        found = np.zeros((jobs, len(JOB_FEATURES)), np.float32)
        cluster = np.zeros(len(CLUSTER_FEATURES))
        self._allowed, advised = np.zeros((2, jobs + 1), np.int8)
        if self._state is not None:
            count = len(self._numbers)
            values = np.zeros((count, len(JOB_FEATURES)))
            allowed = np.zeros(count + 1, bool)
            observe(self._clusters, self._rule, 0, values, cluster, allowed)
            found[self._numbers] = values
            self._allowed[self._numbers] = allowed[:count]
            self._allowed[jobs] = allowed[count]
            by_rule = rule_action(self._clusters, self._rule, 0)
            advised[self._numbers[by_rule] if by_rule < count else jobs] = 1
        return {
            "jobs": found,
            "cluster": cluster.astype(np.float32),
            "allowed": self._allowed.copy(),
            "advised": advised & self._allowed,
        }

    def _makespan_s(self) -> float:
        ends_s = [one.end_s for one in self._simulation.results]
        if len(ends_s) < self._settings.jobs:
            return float("inf")
        return max(ends_s) - float(self.batches.submit_s[0].min())

    def _reward(self) -> float:
        least_s = makespans_s(run_rule(self.batches, RULES["least-failing"]))[0]
        return max(-10.0, 1.0 - self._makespan_s() / float(least_s))


def register_environment() -> None:
    """Register the environment with gymnasium; ``gymnasium.make`` does so by an entry point."""
    if ENVIRONMENT not in gymnasium.registry:
        gymnasium.register(
            id=ENVIRONMENT, entry_point="presage.placement.environment:PlacementEnvironment"
        )


register_environment()
