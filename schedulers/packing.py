"""Packing by forecasts: who shares a device is decided by what is foretold, not by requests."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from presage.features.errors import ConfigError
from presage.schedulers.action import Start
from presage.schedulers.forecasts import Forecasts, Outlook
from presage.schedulers.grant import Grant
from presage.schedulers.idle_devices import IdleDevices
from presage.schedulers.job import Job
from presage.schedulers.placing import consolidated
from presage.schedulers.shared_devices import MOST_KNOWN, Company
from presage.schedulers.shortest_first import ShortestFirst
from presage.schedulers.state import State
from presage.schedulers.urgent import PassedOver

MOST_SLOWDOWN = 1.5
MOST_MEMBERS = 2


class Packing(ShortestFirst):
    """Shortest job first, where jobs of one device may share one.

    Memory is granted by its foretold upper bound, compute by its median: where both are left, and
    nobody there is foretold to become more than ``most_slowdown`` times as slow, a job may go
    beside others. It gets a device of its own as long as there are idle ones; then it goes where
    whoever is slowed most is slowed least. Gangs have whole devices. The first job that needs some
    and does not get them holds up all others that do, while jobs go on to be packed; but not on the
    nodes that are nearest to having them: these run dry for it. So they do for a job of which
    nothing is foretold, or which ran out of memory before: it is not packed.

    Parameters
    ----------
    most_members : int
        Jobs on a device.
    overcommit : float
        How many times over a device's compute is granted: at 1 its jobs are foretold to need no
        more than there is; above, what they lose by taking turns is left to ``most_slowdown``.
    """

    def __init__(
        self,
        most_slowdown: float = MOST_SLOWDOWN,
        most_members: int = MOST_MEMBERS,
        overcommit: float = 1.0,
    ) -> None:
        self._limits = _Limits(most_slowdown, most_members, overcommit)
        for field, value in self._limits._asdict().items():
            if not 1 <= value < math.inf:
                raise ConfigError(f"packing: {field}={value}, must be a finite number >= 1")
        self._neighbours = _Neighbours(self._limits)

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start who has a device of its own, then who has a place beside others."""
        if not len(state.pending):
            return []
        places = _Places(state, forecasts, self._limits)
        actions, idle = [], state.idle()
        for job in state.pending:
            grants = consolidated(job, state.cluster, idle)
            if grants is None:
                places.spare(_run_dry(job, state, forecasts, idle))
                break
            if job.gpus == 1 and not state.standing(job.job_id).overflows:
                grants = (places.take_part(job, grants[0].device, _nobody_on(grants[0], state)),)
            actions.append(Start(job.job_id, grants))
        while places.devices and len(actions) < len(state.pending):
            started = {start.job_id for start in actions}
            actions += self._beside(state, forecasts, places, started)
            if len(actions) == len(started) or self._limits.most_members <= 2:
                break  # else there may be room beside those who went beside others
        return actions

    def _beside(
        self, state: State, forecasts: Forecasts, places: _Places, started: set[str]
    ) -> Iterator[Start]:
        """Who goes beside others, as no more devices are to be had."""
        shapes = state.pending.one_of_each()
        single = {shape: job for shape, job in shapes.items() if job.gpus == 1}
        self._neighbours.look(single, state.shared.known, forecasts)
        slowest = self._neighbours.slowest
        beside = {
            shape: slowest[shape]
            for shape in single
            if not slowest[shape].keys().isdisjoint(places.devices)
        }
        passed_over = PassedOver(state)
        for job in shapes.values():
            if job.latency_sensitive and job.job_id not in started:
                passed_over.add(job)
        turns = state.pending.turns(beside)
        for job in turns:
            if job.job_id in started or state.standing(job.job_id).overflows:
                continue
            company = places.best(beside[job.shape])
            if company is None:
                turns.pass_over()
                continue
            device = places.first(company)
            if passed_over.forbid(job, (places.part(job, device),)):
                turns.pass_over()  # it would be where a latency-sensitive job would fit
                continue
            yield Start(job.job_id, (places.take_part(job, device, company),))


class _Limits(NamedTuple):
    """How much of a device is given away; see :class:`Packing`."""

    most_slowdown: float
    most_members: int
    overcommit: float

    def needs(self, outlook: Outlook) -> tuple[int, int]:
        """Thousandths of a device's compute, and bytes of its memory, that a job is granted."""
        return math.ceil(outlook.compute_milli / self.overcommit), outlook.memory_bytes


class _Places:
    """Devices with room beside jobs, less what a decision takes and with what it adds.

    Attributes
    ----------
    devices : dict of Company to int
        Of each company the bits of devices that have it.
    """

    def __init__(self, state: State, forecasts: Forecasts, limits: _Limits) -> None:
        self._state, self._forecasts, self._limits = state, forecasts, limits
        self.devices = dict(state.shared.devices)

    def first(self, company: Company) -> int:
        """Of the devices that have a company."""
        bits = self.devices[company]
        return (bits & -bits).bit_length() - 1

    def spare(self, nodes: Iterable[int]) -> None:
        """Put nobody on these nodes."""
        kept = 0
        for node in nodes:
            there = self._state.cluster.devices_of(node)
            kept |= (1 << there.stop) - (1 << there.start)
        left = ((company, bits & ~kept) for company, bits in self.devices.items())
        self.devices = {company: bits for company, bits in left if bits}

    def best(self, slowest: Mapping[Company, float]) -> Company | None:
        """Where whoever is slowed most is slowed least; the first of equals."""
        return min(
            slowest.keys() & self.devices.keys(),
            key=lambda company: (slowest[company], self.first(company)),
            default=None,
        )

    def part(self, job: Job, device: int) -> Grant:
        """What a job would be granted of a device."""
        outlook = self._forecasts.outlook(job, self._state.cluster.kind_of(device))
        return Grant(device, *self._limits.needs(outlook))

    def take_part(self, job: Job, device: int, company: Company) -> Grant:
        """What a job gets beside a company; what is left is a place."""
        if company in self.devices:
            self.devices[company] ^= 1 << device
            if not self.devices[company]:
                del self.devices[company]
        grant = self.part(job, device)
        compute_milli = company.compute_milli - grant.compute_milli
        memory_bytes = company.memory_bytes - grant.memory_bytes
        if compute_milli > 0 and len(company.jobs) + 1 < self._limits.most_members:
            left = self._state.shared.company(
                company.kind, compute_milli, memory_bytes, (*company.jobs, job)
            )
            self.devices[left] = self.devices.get(left, 0) | 1 << device
        return grant


def _run_dry(job: Job, state: State, forecasts: Forecasts, idle: IdleDevices) -> list[int]:
    """Nodes that have most idle devices, as many as a job needs that cannot go beside others.

    Where nobody new is put, idle devices become more: these nodes are the ones again next time.
    """
    nodes: list[int] = []
    devices = 0
    known = forecasts.runtime_s(job) < math.inf
    if job.gpus > 1 or state.standing(job.job_id).overflows or not known:
        for node in idle.emptiest(state.cluster.nodes_of(job.kinds)[0]):
            nodes.append(node)
            devices += state.cluster.nodes[node].devices
            if devices >= job.gpus:
                break
    return nodes


def _nobody_on(whole: Grant, state: State) -> Company:
    kind = state.cluster.kind_of(whole.device)
    return Company(kind, whole.compute_milli, whole.memory_bytes, ())


class _Neighbours:
    """Who may go beside whom, by what is foretold: remembered, because it does not change.

    Attributes
    ----------
    slowest : dict
        Of each shape of jobs that was looked at the companies that it may join, and how slow
        whoever is slowed most becomes there.
    """

    def __init__(self, limits: _Limits) -> None:
        self._limits = limits
        self._known: Sequence[Company] = ()
        self._looked_at = 0  # of those known, by every shape
        self._jobs: dict[Hashable, Job] = {}  # one of each shape
        self.slowest: dict[Hashable, dict[Company, float]] = {}

    def look(
        self, jobs: Mapping[Hashable, Job], known: Sequence[Company], forecasts: Forecasts
    ) -> None:
        """Ask for all that was not looked at before, at once."""
        if known is not self._known or len(self._jobs) > MOST_KNOWN:
            self._known, self._looked_at, self._jobs, self.slowest = known, 0, {}, {}
        new = {shape: job for shape, job in jobs.items() if shape not in self._jobs}
        if not new and self._looked_at == len(known):
            return
        asked = [
            *self._meetings(self._jobs, known[self._looked_at :], forecasts),
            *self._meetings(new, known, forecasts),
        ]
        self._jobs |= new
        self._looked_at = len(known)
        self.slowest.update((shape, {}) for shape in new)
        told = forecasts.slowdowns([(one.kind, (*one.jobs, self._jobs[of])) for of, one in asked])
        for (shape, company), slowdowns in zip(asked, told, strict=True):
            if max(slowdowns) <= self._limits.most_slowdown:
                self.slowest[shape][company] = max(slowdowns)

    def _meetings(
        self, jobs: Mapping[Hashable, Job], known: Sequence[Company], forecasts: Forecasts
    ) -> list[tuple[Hashable, Company]]:
        return [
            (shape, company)
            for shape, job in jobs.items()
            for company in known
            if self._has_room(job, company, forecasts)
        ]

    def _has_room(self, job: Job, company: Company, forecasts: Forecasts) -> bool:
        if len(company.jobs) >= self._limits.most_members:
            return False
        if job.kinds and company.kind not in job.kinds:
            return False
        compute_milli, memory_bytes = self._limits.needs(forecasts.outlook(job, company.kind))
        return company.compute_milli >= compute_milli and company.memory_bytes >= memory_bytes
