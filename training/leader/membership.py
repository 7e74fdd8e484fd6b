"""Membership of an elastic job: which workers form its next generation, and when.

Pure: no clock and no I/O. The leader enters what happened and carries out what :meth:`next_move`
returns, until it returns None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from presage.errors import ElasticError
from presage.training.data_set_grouping import Cursor
from presage.training.generation import BREAKPOINT, TRAIN, Generation, Member
from presage.training.leader.job_config import JobConfig
from presage.training.report import Report


class WorkerState(StrEnum):
    """State of a worker, in this order."""

    JOINING = "joining"
    READY = "ready"
    MEMBER = "member"
    LEAVING = "leaving"


@dataclass(slots=True)
class Worker:
    """Worker as known to the leader."""

    worker_id: str
    host: str
    port: int
    state: WorkerState = WorkerState.JOINING
    report: Report = field(default_factory=Report)

    @property
    def member(self) -> Member:
        """The worker as a member of a generation."""
        return Member(self.worker_id, self.host, self.port)


@dataclass(frozen=True, slots=True)
class Pause:
    """Request all members to pause after the current step."""


@dataclass(frozen=True, slots=True)
class End:
    """Close the ring of the current generation at once."""


@dataclass(frozen=True, slots=True)
class Form:
    """Journal and announce a generation, and release the workers that leave."""

    generation: Generation
    released: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is complete."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Fail:
    """The job cannot continue."""

    reason: str


Move = Pause | End | Form | Finish | Fail


@dataclass(slots=True)
class Membership:
    """Workers and current generation of a job.

    Attributes
    ----------
    desired : int
        Requested number of workers.
    is_start_overdue : bool
        Whether a job that has not started may start with ``min_workers``.
    """

    config: JobConfig
    desired: int
    workers: dict[str, Worker] = field(default_factory=dict)
    generation: Generation | None = None
    is_start_overdue: bool = False
    _is_pausing: bool = False
    _is_ended: bool = False

    def add(self, worker: Worker) -> None:
        """Enter a worker that connected.

        Raises
        ------
        ElasticError
            Another worker with its id is connected.
        """
        if worker.worker_id in self.workers:
            raise ElasticError(f"worker {worker.worker_id!r} is connected already")
        self.workers[worker.worker_id] = worker

    def enter_report(self, worker_id: str, report: Report) -> None:
        """Enter what a worker reports; a worker that is not a member can only become ready."""
        worker = self.workers[worker_id]
        is_member = self.generation is not None and self.generation.has_member(worker_id)
        if not is_member and report.phase not in ("joining", "ready"):
            return
        worker.report = report
        if worker.state is WorkerState.JOINING and report.phase == "ready":
            worker.state = WorkerState.READY

    def remove(self, worker_id: str) -> None:
        """Remove a worker that died."""
        if self.workers.pop(worker_id, None) is not None:
            self._choose_leaving()

    def resize(self, workers: int) -> None:
        """Change the requested number of workers; the last ranks leave.

        Raises
        ------
        ElasticError
            The number is outside the job's bounds.
        """
        self.config.check_size(workers)
        self.desired = workers
        self._choose_leaving()

    def members(self) -> list[Worker]:
        """Return the connected members of the current generation, by rank."""
        if self.generation is None:
            return []
        ids = [member.worker_id for member in self.generation.members]
        return [self.workers[one] for one in ids if one in self.workers]

    def adopt(self, move: Form) -> None:
        """Make a journalled generation the current one."""
        for worker_id in move.released:
            self.workers.pop(worker_id, None)
        self.generation = move.generation
        self._is_pausing = self._is_ended = False
        self._choose_leaving()

    def is_formed(self) -> bool:
        """Whether every member of the current generation runs, with the training state."""
        number = self.generation.number if self.generation else 0
        members = self.members()
        return (
            self.generation is not None
            and len(members) == self.generation.size
            and all(one.report.generation == number and one.report.has_state for one in members)
        )

    def next_move(self) -> Move | None:
        """Return what the leader does next; None if it waits."""
        if self.generation is None:
            return self._first()
        members = self.members()
        if not all(self._is_paused(one) for one in members):
            return self._while_running(members)
        furthest = max(
            (one for one in members if one.report.has_state),
            key=lambda one: one.report.cursor,
            default=None,
        )
        if furthest is None and self.generation.entry == TRAIN and members:
            furthest = members[0]  # no parameters were sent yet: its initial ones are as good
        if furthest is None:
            return Fail("no worker with the job's parameters is left; start it from a checkpoint")
        reports = [one.report for one in members]
        if all(one.is_finished and one.cursor == furthest.report.cursor for one in reports):
            return Finish(furthest.report.cursor)
        return self._next_generation(members, furthest)

    def _first(self) -> Form | None:
        ready = self._ready()
        needed = self.config.min_workers if self.is_start_overdue else self.desired
        if len(ready) < needed:
            return None
        chosen = ready[: self.desired]
        source = max(chosen, key=lambda one: one.report.cursor)  # the first of equals
        return self._form(chosen, source, (), 1)

    def _while_running(self, members: list[Worker]) -> Move | None:
        assert self.generation is not None
        is_lost = len(members) < self.generation.size
        is_broken = any(self._is_paused(one) and one.report.is_broken for one in members)
        if (is_lost or is_broken) and not self._is_ended:
            self._is_ended = True
            return End()
        is_leaving = any(one.state is WorkerState.LEAVING for one in members)
        is_growing = len(members) < self.desired and bool(self._ready())
        if (is_leaving or is_growing) and not (self._is_pausing or self._is_ended):
            self._is_pausing = True
            return Pause()
        return None

    def _next_generation(self, members: list[Worker], furthest: Worker) -> Form | None:
        assert self.generation is not None
        staying = [one for one in members if one.state is not WorkerState.LEAVING]
        behind = [one for one in staying if _needs_state(one, furthest)]
        if furthest not in staying and len(behind) == len(staying):
            staying.append(furthest)  # the only source; it leaves at the next step
        sources = [one for one in staying if one.report.has_state] or [furthest]
        source = max(sources, key=lambda one: one.report.cursor)
        chosen = staying + self._ready()[: max(0, self.desired - len(staying))]
        if len(chosen) < self.config.min_workers:
            return None
        released = tuple(one.worker_id for one in members if one not in chosen)
        return self._form(chosen, source, released, self.generation.number + 1)

    def _form(
        self, chosen: list[Worker], source: Worker, released: tuple[str, ...], number: int
    ) -> Form:
        ordered = [source, *(one for one in chosen if one is not source)]
        receivers = [one.worker_id for one in ordered[1:] if _needs_state(one, source)]
        cursor = source.report.cursor
        entry = TRAIN if number == 1 and cursor == Cursor() else BREAKPOINT
        members = tuple(one.member for one in ordered)
        return Form(Generation(number, members, tuple(receivers), cursor, entry), released)

    def _choose_leaving(self) -> None:
        """Let surplus members leave: those that are leaving already, then the last ranks."""
        members = self.members()
        surplus = max(0, len(members) - self.desired)
        order = [one for one in members if one.state is WorkerState.LEAVING]
        order += [one for one in reversed(members) if one not in order]
        leaving = {one.worker_id for one in order[:surplus]}
        for one in members:
            is_leaving = one.worker_id in leaving
            one.state = WorkerState.LEAVING if is_leaving else WorkerState.MEMBER

    def _is_paused(self, worker: Worker) -> bool:
        assert self.generation is not None
        report = worker.report
        return report.phase == "paused" and report.generation == self.generation.number

    def _ready(self) -> list[Worker]:
        """Return the ready workers that are not members, in the order in which they connected."""
        return [one for one in self.workers.values() if one.state is WorkerState.READY]


def _needs_state(worker: Worker, source: Worker) -> bool:
    report = worker.report  # a checkpoint of a newcomer may be of steps that were lost
    is_new = report.generation == 0 or not report.has_state
    return is_new or report.cursor < source.report.cursor
