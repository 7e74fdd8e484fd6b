"""Packing by forecasts: who shares a device is decided by what is foretold, not by requests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

from presage.features.errors import ConfigError
from presage.schedulers.action import Start
from presage.schedulers.forecasts import Forecasts
from presage.schedulers.idle_devices import IdleDevices
from presage.schedulers.job import Job
from presage.schedulers.policies.neighbours import Limits, Neighbours
from presage.schedulers.policies.places import Places
from presage.schedulers.policies.placing import consolidated
from presage.schedulers.policies.shortest_first import ShortestFirst
from presage.schedulers.policies.urgent import PassedOver
from presage.schedulers.state import State

MOST_SLOWDOWN = 1.5
MOST_MEMBERS = 2
DEPTH = 256  # shapes of jobs that wait, as far as a decision looks


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
        self._limits = Limits(most_slowdown, most_members, overcommit)
        for field, value in self._limits._asdict().items():
            if not 1 <= value < math.inf:
                raise ConfigError(f"packing: {field}={value}, must be a finite number >= 1")
        self._neighbours = Neighbours(self._limits)

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start who has a device of its own, then who has a place beside others."""
        if not len(state.pending):
            return []
        places = Places(state, forecasts, self._limits)
        actions, idle = [], state.idle()
        for job in state.pending:
            grants = consolidated(job, state.cluster, idle)
            if grants is None:
                places.spare(_run_dry(job, state, forecasts, idle))
                break
            if job.gpus == 1 and not state.standing(job.job_id).overflows:
                grants = (places.whole(job, grants[0]),)
            actions.append(Start(job.job_id, grants))
        while places and len(actions) < len(state.pending):
            started = {start.job_id for start in actions}
            actions += self._beside(state, forecasts, places, started)
            if len(actions) == len(started) or self._limits.most_members <= 2:
                break  # else there may be room beside those who went beside others
        return actions

    def _beside(
        self, state: State, forecasts: Forecasts, places: Places, started: set[str]
    ) -> Iterator[Start]:
        """Who goes beside others, as no more devices are to be had."""
        neighbours = self._neighbours.look(
            state.pending.shapes(DEPTH), state.pending, state.shared, forecasts
        )
        turns = state.pending.turns(
            {
                shape
                for shape, one in neighbours.items()
                if one.job.latency_sensitive or places.may_have(one)
            }
        )
        passed_over = PassedOver(state)
        for job in turns:
            if job.job_id in started:
                continue
            if state.standing(job.job_id).overflows:
                passed_over.add(job)
                continue
            place = places.best(neighbours[job.shape])
            if place is None:
                passed_over.add(job)
                turns.pass_over()
                continue
            device, company = place
            if passed_over.forbid(job, (places.part(job, device),)):
                turns.pass_over()  # it would be where a latency-sensitive job would fit
                continue
            yield Start(job.job_id, (places.beside(job, device, company),))


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
