"""Packing by forecasts: who shares a device is decided by what is foretold, not by requests."""

from __future__ import annotations

from random import Random

from presage.schedulers.action import Start
from presage.schedulers.forecasts import Forecasts
from presage.schedulers.grant import Grant
from presage.schedulers.job import Job
from presage.schedulers.placing import consolidated
from presage.schedulers.shared_devices import Company
from presage.schedulers.shortest_first import ShortestFirst
from presage.schedulers.state import State

MOST_SLOWDOWN = 1.5
MOST_MEMBERS = 2


class Packing(ShortestFirst):
    """Shortest job first, where jobs of one device may share one.

    Memory is granted by its foretold upper bound, compute by its median: where both are left, and
    nobody there is foretold to become more than ``most_slowdown`` times as slow, a job may go
    beside others. It gets a device of its own as long as there are idle ones; then it goes where
    whoever is slowed most is slowed least. Gangs have whole devices. The first job that needs some
    and does not get them holds up all others that do, while jobs go on to be packed.

    Parameters
    ----------
    most_members : int
        Jobs on a device.
    """

    def __init__(
        self, most_slowdown: float = MOST_SLOWDOWN, most_members: int = MOST_MEMBERS
    ) -> None:
        self._most_slowdown, self._most_members = most_slowdown, most_members

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start who has a device of its own, or a place beside others."""
        actions: list[Start] = []
        if not len(state.pending):
            return actions
        idle, turns = state.idle(), state.pending.turns()
        places = _Places(state, forecasts, self._most_slowdown, self._most_members)
        held = False  # whether somebody waits for idle devices
        for job in turns:
            grants = None if held else consolidated(job, state.cluster, idle)
            if grants is None:
                held = True
                grants = places.beside(job)
            elif job.gpus == 1:
                grants = places.alone(job, grants[0].device)
            if grants is not None:
                actions.append(Start(job.job_id, grants))
            elif places.none:
                break
            else:
                turns.pass_over()
        return actions


class _Places:
    """Places beside jobs, of before this decision and of its own."""

    def __init__(
        self, state: State, forecasts: Forecasts, most_slowdown: float, most_members: int
    ) -> None:
        self._state, self._forecasts = state, forecasts
        self._most_slowdown, self._most_members = most_slowdown, most_members
        self._open = [one for one in state.companies() if len(one.jobs) < most_members]
        self._asked = False

    @property
    def none(self) -> bool:
        """Whether there is no place at all."""
        return not self._open

    def alone(self, job: Job, device: int) -> tuple[Grant, ...]:
        """What a job is granted of an idle device; the rest of it is a place."""
        whole = self._state.cluster.whole[device]
        kind = self._state.cluster.kind_of(device)
        return self._granted(
            job, device, Company(kind, whole.compute_milli, whole.memory_bytes, (), ())
        )

    def beside(self, job: Job) -> tuple[Grant, ...] | None:
        """What a job is granted beside others, where they are slowed least; None if nowhere."""
        if job.gpus > 1 or not self._open:
            return None
        if not self._asked:
            self._ask_at_once()
        fitting = [one for one in self._open if self._has_room(job, one)]
        slowdowns = self._forecasts.slowdowns([(one.kind, (*one.jobs, job)) for one in fitting])
        slowest, _, best = min(
            (
                (max(of_each), one.devices[0], one)
                for of_each, one in zip(slowdowns, fitting, strict=True)
            ),
            default=(self._most_slowdown + 1, 0, None),
        )
        if best is None or slowest > self._most_slowdown:
            return None
        self._open.remove(best)
        device, *others = best.devices
        if others:
            self._open.append(best._replace(devices=tuple(others)))
        return self._granted(job, device, best)

    def _granted(self, job: Job, device: int, company: Company) -> tuple[Grant, ...]:
        _, compute_milli, memory_bytes = self._forecasts.outlook(job, company.kind)
        left = company._replace(
            compute_milli=company.compute_milli - compute_milli,
            memory_bytes=company.memory_bytes - memory_bytes,
            jobs=(*company.jobs, job),
            devices=(device,),
        )
        if left.compute_milli > 0 and len(left.jobs) < self._most_members:
            self._open.append(left)
        return (Grant(device, compute_milli, memory_bytes),)

    def _has_room(self, job: Job, company: Company) -> bool:
        if job.kinds and company.kind not in job.kinds:
            return False
        _, compute_milli, memory_bytes = self._forecasts.outlook(job, company.kind)
        return company.compute_milli >= compute_milli and company.memory_bytes >= memory_bytes

    def _ask_at_once(self) -> None:
        """One question for whatever may come up, instead of one for each job."""
        self._asked = True
        alike = {job.shape: job for job in self._state.pending.one_of_each() if job.gpus == 1}
        self._forecasts.slowdowns(
            [
                (one.kind, (*one.jobs, job))
                for one in self._open
                for job in alike.values()
                if self._has_room(job, one)
            ]
        )
