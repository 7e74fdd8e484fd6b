"""Arbitration of switches between jobs (requirements I1, I2, I3, I8): a pure function of the view.

``decide`` applies the three rules to one AllReduce. ``decision_tables`` applies it to all
AllReduces of a view in the order of their predicted arrivals, and returns the table of each job.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from presage.collectives.core.demand import JobDemand
from presage.collectives.core.view import JobView, Reason, View

# Score that a job gains by each AllReduce that was not allowed, as a share of its time saved.
AGEING = 0.1


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """Claim of a job's AllReduce to a switch; the smallest of several claims has priority.

    Attributes
    ----------
    negative_score : float
        Negative score in seconds, so that claims sort by descending score.
    job_id : str
        Id of the job: ties go to the smaller id at every rank.
    """

    negative_score: float
    job_id: str


def decide(claim: Claim, *, used: int, rivals: tuple[Claim, ...], slots: int) -> Reason:
    """Decide one AllReduce on one switch.

    Parameters
    ----------
    claim : Claim
        Claim of the AllReduce that is about to start.
    used : int
        Number of other jobs that use the switch or have a reserved slot.
    rivals : tuple of Claim
        Claims of the other jobs that arrive during the run of this AllReduce.
    slots : int
        Number of jobs that the switch aggregates for at a time.
    """
    free = slots - used
    if free < 1:
        return Reason.IN_USE
    if len(rivals) < free:
        return Reason.NO_OTHER_ARRIVAL
    is_high = sum(rival < claim for rival in rivals) < free
    return Reason.HIGHEST_SCORE if is_high else Reason.LOWER_SCORE


def decision_tables(view: View, *, ageing: float = AGEING) -> dict[str, JobView]:
    """Compute the decisions of every job of a view.

    Parameters
    ----------
    view : View
        Agreed state.
    ageing : float
        Share of its time saved by which the score of a job rises with each denied AllReduce.

    Returns
    -------
    dict of str to JobView
        Table of each job, by its id.
    """
    return dict(_decisions(view, ageing).tables)


def predicted_arrivals(view: View, *, ageing: float = AGEING) -> Mapping[str, Sequence[float]]:
    """Return the predicted start of each AllReduce of the predictable jobs of a view, by job.

    They follow from the decisions: an AllReduce on the switch moves those after it.
    """
    return _decisions(view, ageing).arrivals_s


class _Decisions(NamedTuple):
    """Decisions of a view, and the arrivals that follow from them, by job."""

    tables: dict[str, JobView]
    arrivals_s: dict[str, list[float]]


@lru_cache(maxsize=4)
def _decisions(view: View, ageing: float) -> _Decisions:
    reserved = _reserved(view)
    tables = {job.job_id: bytearray(view.window) for job in view.jobs}
    arrivals_s: dict[str, list[float]] = {}
    for job in view.jobs:
        if job.ranks == 1 or not job.is_predictable:
            reason = Reason.RESERVED if job.job_id in reserved else Reason.LOWER_SCORE
            code = Reason.SINGLE_RANK if job.ranks == 1 else reason
            tables[job.job_id][:] = bytes([code]) * view.window
    for found in _replay(view, reserved, ageing):
        tables[found.job_id][found.position] = found.reason
        arrivals_s.setdefault(found.job_id, []).append(found.arrival_s)
    by_job = {
        job.job_id: JobView(view.epoch, first, bytes(tables[job.job_id]))
        for job, first in zip(view.jobs, view.first_numbers, strict=True)
    }
    return _Decisions(by_job, arrivals_s)


def _replay(view: View, reserved: frozenset[str], ageing: float) -> Iterator[_Decided]:
    replay = _Replay(view, reserved, ageing)
    kept = view.kept or (b"",) * len(view.jobs)
    for job, first, decisions in zip(view.jobs, view.first_numbers, kept, strict=True):
        if job.ranks > 1 and job.is_predictable:
            replay.add(job, first, decisions)
    return replay.run()


def _reserved(view: View) -> frozenset[str]:
    """Return the unpredictable jobs that hold a slot throughout the view.

    Their arrivals count as "soon" for every other AllReduce. A job of them is allowed if its
    largest score is among the highest of all jobs on each of its switches, up to the slots.
    """
    slots = dict(view.slots)
    jobs = [job for job in view.jobs if job.ranks > 1]
    claims = {job.job_id: Claim(-job.largest_saving_s, job.job_id) for job in jobs}

    def is_among_highest(job: JobDemand, switch: str) -> bool:
        others = [claims[o.job_id] for o in jobs if o is not job and switch in o.switches]
        return sum(other < claims[job.job_id] for other in others) < slots[switch]

    return frozenset(
        job.job_id
        for job in jobs
        if not job.is_predictable and all(is_among_highest(job, name) for name in job.switches)
    )


@dataclass(slots=True)
class _Queue:
    """AllReduces of one predictable job that have not arrived yet."""

    job: JobDemand
    first: int
    number: int
    kept: bytes  # decisions of the view before
    denied: int = 0  # since the last one that was allowed
    shift_s: float = 0.0  # of arrivals, by AllReduces on the switch

    @property
    def arrival_s(self) -> float:
        return self.job.arrival_s(self.number) - self.shift_s

    def advance(self, reason: Reason) -> None:
        """Go on to the next AllReduce."""
        if reason.is_allowed:
            self.shift_s += self.job.shift_s(self.number)
        self.number += 1
        self.denied = 0 if reason.is_allowed else self.denied + 1

    def claim(self, ageing: float) -> Claim:
        saved_s = self.job.time_saved_s(self.number)
        return Claim(-saved_s * (1 + ageing * self.denied), self.job.job_id)


class _Decided(NamedTuple):
    """Decision of one AllReduce, by its position in the table of its job."""

    job_id: str
    position: int
    arrival_s: float
    reason: Reason


@dataclass(slots=True)
class _Replay:
    """Arrivals of a view in their predicted order, and the jobs that use each switch."""

    view: View
    reserved: frozenset[str]
    ageing: float
    queues: dict[str, _Queue] = field(default_factory=dict)
    ends_s: dict[str, dict[str, float]] = field(default_factory=dict)  # by switch, then job

    def add(self, job: JobDemand, first: int, kept: bytes) -> None:
        self.queues[job.job_id] = _Queue(job, first, first, kept[: self.view.window])

    def run(self) -> Iterator[_Decided]:
        """Yield the decision of each AllReduce, by predicted arrival."""
        slots = self._free_slots()
        heap = [(queue.arrival_s, job_id) for job_id, queue in self.queues.items()]
        heapq.heapify(heap)
        for _ in range(self.view.window * len(self.queues)):
            now_s, job_id = heapq.heappop(heap)
            queue = self.queues[job_id]
            index = queue.number - queue.first
            if index < len(queue.kept):
                reason = self._keep(queue, now_s, Reason(queue.kept[index]))
            else:
                reason = self._decide(queue, now_s, slots)
            yield _Decided(job_id, index, now_s, reason)
            queue.advance(reason)
            if queue.number < queue.first + self.view.window:
                heapq.heappush(heap, (queue.arrival_s, job_id))

    def _keep(self, queue: _Queue, now_s: float, reason: Reason) -> Reason:
        """Return a decision of the view before, and occupy its switches."""
        if reason.is_allowed:
            end_s = now_s + queue.job.inc_s(queue.number)
            for name in queue.job.switches:
                self.ends_s.setdefault(name, {})[queue.job.job_id] = end_s
        return reason

    def _free_slots(self) -> dict[str, int]:
        """Return the slots of each switch that no unpredictable job holds."""
        jobs = [job for job in self.view.jobs if job.job_id in self.reserved]
        held = [name for job in jobs for name in job.switches]
        return {name: slots - held.count(name) for name, slots in self.view.slots}

    def _decide(self, queue: _Queue, now_s: float, slots: Mapping[str, int]) -> Reason:
        """Decide on each switch of the job: all allow it, or it runs by ring."""
        job = queue.job
        end_s = now_s + job.inc_s(queue.number)
        reason = Reason.NO_OTHER_ARRIVAL
        for name in job.switches:
            ends_s = self.ends_s.setdefault(name, {})
            users = {j for j, end in ends_s.items() if end > now_s and j != job.job_id}
            rivals = self._rivals(queue, name, end_s, users)
            claim = queue.claim(self.ageing)
            found = decide(claim, used=len(users), rivals=rivals, slots=slots[name])
            if not found.is_allowed:
                return found
            reason = max(reason, found)
        for name in job.switches:
            self.ends_s[name][job.job_id] = end_s
        return reason

    def _rivals(self, queue: _Queue, name: str, end_s: float, users: set[str]) -> tuple[Claim, ...]:
        """Return the claims of other jobs that arrive at the switch before ``end_s``."""
        limit = self.view.window
        return tuple(
            other.claim(self.ageing)
            for job_id, other in self.queues.items()
            if other is not queue
            and job_id not in users
            and name in other.job.switches
            and other.number < other.first + limit
            and other.arrival_s - other.job.margin_s < end_s + queue.job.margin_s
        )
