"""Elastic adjustment of what runs on nodes: more for who is late, less for who can wait (N3 to N7).

It works on a node agent's own node, live, and on all nodes of a cluster in the simulator.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from presage.schedulers.core.action import Action, Pause, Resize, Resume
from presage.schedulers.core.allocation import WHOLE, Grant
from presage.schedulers.core.capacity.free_capacity import Room
from presage.schedulers.core.forecasts import Forecasts, Outlook
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import Phase, Standing
from presage.schedulers.core.state import State
from presage.schedulers.policies.sharing.best_effort import Tenants
from presage.schedulers.policies.sharing.demand import share_of
from presage.schedulers.policies.sharing.reclaim import release
from presage.schedulers.policies.sharing.sharing_settings import Settings
from presage.schedulers.policies.sharing.slo import too_busy, violated


class _Check(NamedTuple):
    """A look at a job's quality of service."""

    elapsed_s: float
    done: float
    pace_s: float
    outlook: Outlook
    reserve: float

    def violated(self, times: float = 1.0) -> bool:
        """Whether it will be late, if it has so many times its share."""
        pace_s = self.pace_s / times
        return violated(self.elapsed_s, self.done, self.outlook, pace_s, self.reserve)


class Adjustment:
    """One look at who runs; ``room`` is what is left, and is changed with every action.

    Attributes
    ----------
    actions : list of Action
        What is to be done, in order.
    late : dict of str to bool
        Of each latency-sensitive job on a single device whether it is (N3).
    hungry : bool
        Whether a best-effort job goes on with less than it needs.
    """

    def __init__(
        self, state: State, forecasts: Forecasts, room: Room, tenants: Tenants, settings: Settings
    ) -> None:
        self._state, self._forecasts, self._settings = state, forecasts, settings
        self._room, self._tenants = room, tenants
        self.actions: list[Action] = []
        self.late: dict[str, bool] = {}
        self.hungry = False

    def run(self) -> list[Action]:
        """Look at the latency-sensitive jobs first, then at what best-effort ones may have back."""
        urgent: list[tuple[Job, Standing]] = []
        others: list[tuple[Job, Standing]] = []
        for job_id, standing in (*self._state.running.items(), *self._state.paused.items()):
            if len(standing.grants) == 1:
                job = self._state.job(job_id)
                (urgent if job.latency_sensitive else others).append((job, standing))
        for job, standing in urgent:
            self._look_at(job, standing)
        strained = {standing.grants[0].device for job, standing in urgent if self.late[job.job_id]}
        for job, standing in others:
            self._give_back(job, standing.grants[0].device in strained)
        return self.actions

    def _look_at(self, job: Job, standing: Standing) -> None:
        (grant,), state = standing.grants, self._state
        check = _Check(
            max(0.0, state.now_s - standing.first_start_s),
            state.progress(job.job_id),
            state.pace_s(job.job_id),
            self._outlook(job, grant),
            self._settings.reserve,
        )
        late = self.late[job.job_id] = check.violated()
        busy = not late and too_busy(state.usage_milli(job.job_id), check.outlook)
        if standing.phase is Phase.PAUSED:
            if not busy:
                self.actions.append(Resume(job.job_id))
        elif busy:
            self.actions.append(Pause(job.job_id))
        elif late:
            surely = check._replace(pace_s=state.least_pace_s(job.job_id)).violated()
            self._raise(job, grant, self._wanted(grant.compute_milli, check), surely=surely)

    def _wanted(self, milli: int, check: _Check) -> int:
        """The share that a late job is to have: a step more, and another until it is in time (N4).

        One step at a time, where nobody can tell what a share is worth, or by the model's forecast
        no share is enough.
        """
        step_milli = self._settings.step_milli
        if not check.pace_s or check.violated(math.inf):
            return min(WHOLE, milli + step_milli)
        wanted = milli
        while wanted < WHOLE and check.violated(wanted / milli):
            wanted = min(WHOLE, wanted + step_milli)
        return wanted

    def _raise(self, job: Job, grant: Grant, wanted_milli: int, *, surely: bool) -> None:
        """Give a job more, of what is left or of what best-effort jobs have (N4 to N6).

        They are lowered at once, and ended only for one that is ``surely`` late: what was saved and
        ended does not come back with the next look.
        """
        device, left = grant.device, int(self._room.compute_milli[grant.device])
        more = wanted_milli - grant.compute_milli
        if left < more:
            tenants = self._tenants.on(device)
            if not surely:
                more = min(more, left + sum(one.spare_milli for one in tenants))
            found = release(more - left, 0, tenants)
            if found is None:  # not all of it can be had
                more = left + sum(one.compute_milli for one in tenants)
                found = release(more - left, 0, tenants)
                assert found is not None
            self.actions += self._tenants.carry_out(found, device)
        if more > 0:
            self._room.compute_milli[device] -= more
            given = grant._replace(compute_milli=grant.compute_milli + more)
            self.actions.append(Resize(job.job_id, (given,)))

    def _give_back(self, job: Job, strained: bool) -> None:
        """Let a best-effort job that was lowered have as much as it needs, if that is left."""
        grant = self._tenants.grant_of(job.job_id)
        if grant is None:
            return
        wanted = share_of(self._outlook(job, grant), self._settings.overcommit)
        lack = wanted - grant.compute_milli
        more = 0 if strained else min(lack, int(self._room.compute_milli[grant.device]))
        if more > 0:
            self.actions.append(self._tenants.change(job.job_id, grant.compute_milli + more))
        self.hungry |= more < lack

    def _outlook(self, job: Job, grant: Grant) -> Outlook:
        return self._forecasts.outlook(job, self._state.cluster.kind_of(grant.device))


def not_on_hold(state: State) -> Room:
    """What is left of every device, less what paused jobs go on with when they are resumed."""
    room = state.room()
    for standing in state.paused.values():
        for device, compute_milli, _ in standing.grants:
            room.compute_milli[device] -= compute_milli
    return room
