"""Membership of an elastic job: which workers form its next generation, and when.

Pure: no clock and no I/O. The leader enters what happened and carries out what :meth:`next_move`
returns, until it returns None.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from presage.errors import ElasticError
from presage.training.data_set_grouping import Cursor
from presage.training.generation import BREAKPOINT, TRAIN, Generation
from presage.training.leader.job_config import MAX_WORKERS, JobConfig
from presage.training.leader.moves import (
    End,
    Fail,
    Finish,
    Form,
    Move,
    Pause,
    Release,
    Save,
    Suspend,
)
from presage.training.leader.worker import Worker, WorkerState, worker_name
from presage.training.report import Report


@dataclass(slots=True)
class Membership:
    """Workers and current generation of a job.

    Attributes
    ----------
    desired : int
        Requested number of workers.
    names : frozenset of str, optional
        Names of the workers that may take part; None for all.
    capacity : int
        Largest size of a generation. Surplus workers stay ready.
    is_start_overdue : bool
        Whether a job that has not started may start with ``min_workers``, without a generation
        of an earlier leader.
    """

    config: JobConfig
    desired: int
    names: frozenset[str] | None = None
    capacity: int = MAX_WORKERS
    workers: dict[str, Worker] = field(default_factory=dict)
    generation: Generation | None = None
    is_start_overdue: bool = False
    _is_pausing: bool = False
    _is_ended: bool = False
    _saver: str = ""  # worker that is requested to write a checkpoint
    _has_save_ended: bool = False

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

    def reconnect(self, worker_id: str, host: str, port: int) -> None:
        """Enter that a worker connected again; it may have missed requests, which are repeated."""
        worker = self.workers[worker_id]
        worker.host, worker.port = host, port
        if self._is_member(worker_id):
            self._is_pausing = self._is_ended = False
        if self._saver == worker_id:
            self._saver = ""

    def enter_report(self, worker_id: str, report: Report) -> None:
        """Enter what a worker reports; a worker that is not a member can only become ready."""
        worker = self.workers[worker_id]
        if not self._is_member(worker_id) and report.phase not in ("joining", "ready"):
            return
        worker.report = report
        if worker.state is WorkerState.JOINING and report.phase == "ready":
            worker.state = WorkerState.READY
            self._choose_leaving()

    def enter_saved(self, worker_id: str) -> None:
        """Enter that a worker has written the requested checkpoint, or cannot write it."""
        self._has_save_ended |= worker_id == self._saver

    def remove(self, worker_id: str) -> None:
        """Remove a worker that died or was released."""
        if self.workers.pop(worker_id, None) is not None:
            if self._saver == worker_id:
                self._saver = ""
            self._choose_leaving()

    def leave(self, worker_id: str) -> bool:
        """Let a worker leave for good; return whether it left at once, being no member."""
        if not self._is_member(worker_id):
            self.remove(worker_id)
            return True
        self.workers[worker_id].is_departing = True
        self._choose_leaving()
        return False

    def resize(self, workers: int, names: Iterable[str] | None = None) -> None:
        """Change the requested number of workers, and the names of those that may take part.

        Members whose name is not among them leave first, then the last ranks. Members leave
        because of their names as soon as ``min_workers`` others are members or ready.

        Raises
        ------
        ElasticError
            The number is outside the job's bounds.
        """
        self.config.check_size(workers)
        self.desired, self.names = workers, None if names is None else frozenset(names)
        self._choose_leaving()

    @property
    def target(self) -> int:
        """Size of the next generation if enough workers are ready."""
        return min(self.desired, self.capacity)

    def members(self) -> list[Worker]:
        """Return the connected members of the current generation, by rank."""
        if self.generation is None:
            return []
        ids = [member.worker_id for member in self.generation.members]
        return [self.workers[one] for one in ids if one in self.workers]

    def is_short(self) -> bool:
        """Whether fewer than ``min_workers`` members stay."""
        staying = [one for one in self.members() if not one.is_leaving]
        return len(staying) < self.config.min_workers

    def adopt(self, move: Form) -> None:
        """Make a journalled generation the current one."""
        for worker_id in move.released:
            self.workers.pop(worker_id, None)
        self.generation = move.generation
        self._is_pausing = self._is_ended = self._has_save_ended = False
        self._saver = ""
        self._choose_leaving()

    def readmit(
        self, generation: Generation, released: Container[str], connected: Container[str]
    ) -> None:
        """Make a generation the current one whose members may not be connected yet.

        Members of an older generation that are not in it join again if they are connected.
        """
        for one in self.members():
            if not generation.has_member(one.worker_id):
                del self.workers[one.worker_id]
                if one.worker_id in connected:
                    self.add(Worker(one.worker_id, one.host, one.port))
        for member in generation.members:
            worker_id = member.worker_id
            if worker_id not in released and worker_id not in self.workers:
                self.add(Worker(worker_id, member.host, member.port))
        self.adopt(Form(generation))

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
            furthest = members[0]  # no step was committed: its initial parameters are as good
        if furthest is None:
            return Fail("no worker with the job's parameters is left; start it from a checkpoint")
        reports = [one.report for one in members]
        if all(one.is_finished and one.cursor == furthest.report.cursor for one in reports):
            return Finish(furthest.report.cursor)
        return self._next_generation(members, furthest)

    def _first(self) -> Form | None:
        ready = self._ready()
        if self.config.is_successor and not self.is_start_overdue:
            return None  # members of an earlier generation may connect
        needed = self.config.min_workers if self.is_start_overdue else self.target
        if len(ready) < needed:
            return None
        chosen = ready[: self.target]
        source = max(chosen, key=lambda one: one.report.cursor)  # the first of equals
        return self._form(chosen, source, (), 1)

    def _while_running(self, members: list[Worker]) -> Move | None:
        assert self.generation is not None
        is_lost = len(members) < self.generation.size
        is_broken = any(self._is_paused(one) and one.report.is_broken for one in members)
        if (is_lost or is_broken) and not self._is_ended:
            self._is_ended = True
            return End()
        is_leaving = any(one.is_leaving for one in members)
        is_growing = len(members) < self.target and bool(self._ready())
        if (is_leaving or is_growing) and not (self._is_pausing or self._is_ended):
            self._is_pausing = True
            return Pause()
        return None

    def _next_generation(self, members: list[Worker], furthest: Worker) -> Move | None:
        assert self.generation is not None
        staying = [one for one in members if not one.is_leaving]
        chosen = staying + self._ready()[: max(0, self.target - len(staying))]
        if len(chosen) < self.config.min_workers:
            return self._wait_for_workers(members, staying, furthest)
        cursor = furthest.report.cursor
        if furthest not in chosen and all(one.needs_state(cursor) for one in chosen):
            # It is the only source; it leaves at the next step.
            chosen = [*chosen[: max(1, len(staying), self.target - 1)], furthest]
        sources = [one for one in members if one in chosen and one.report.has_state] or [furthest]
        source = max(sources, key=lambda one: one.report.cursor)
        released = tuple(one.worker_id for one in members if one not in chosen)
        return self._form(chosen, source, released, self.generation.number + 1)

    def _wait_for_workers(
        self, members: list[Worker], staying: list[Worker], furthest: Worker
    ) -> Save | Release | Suspend | None:
        """Save the state, then release the workers that leave; without any other, suspend."""
        if not self._has_save_ended:
            if self._saver:
                return None
            self._saver = furthest.worker_id
            return Save(furthest.worker_id)
        if not staying:
            return Suspend(furthest.report.cursor)
        leaving = tuple(one.worker_id for one in members if one.is_leaving)
        return Release(leaving) if leaving else None

    def _form(
        self, chosen: list[Worker], source: Worker, released: tuple[str, ...], number: int
    ) -> Form:
        ordered = [source, *(one for one in chosen if one is not source)]
        cursor = source.report.cursor
        receivers = [one.worker_id for one in ordered[1:] if one.needs_state(cursor)]
        is_lone = not any(one.report.has_state for one in ordered[1:])
        entry = TRAIN if cursor == Cursor() and is_lone else BREAKPOINT
        members = tuple(one.member for one in ordered)
        return Form(Generation(number, members, tuple(receivers), cursor, entry), released)

    def _choose_leaving(self) -> None:
        """Let workers leave that requested it, those without a listed name, and the surplus.

        Of the surplus, those that are leaving already come first, then the last ranks.
        """
        members = self.members()
        rest = [one for one in reversed(members) if not one.is_departing]
        rest.sort(key=lambda one: (self._is_listed(one), not one.is_leaving))
        unlisted = sum(not self._is_listed(one) for one in rest)
        dispensable = len(rest) + len(self._ready()) - self.config.min_workers
        count = max(0, len(rest) - self.target, min(unlisted, dispensable))
        for one in members:
            is_leaving = one.is_departing or one in rest[:count]
            one.state = WorkerState.LEAVING if is_leaving else WorkerState.MEMBER

    def _is_member(self, worker_id: str) -> bool:
        return self.generation is not None and self.generation.has_member(worker_id)

    def _is_listed(self, worker: Worker) -> bool:
        return self.names is None or worker_name(worker.worker_id) in self.names

    def _is_paused(self, worker: Worker) -> bool:
        assert self.generation is not None
        report = worker.report
        return report.phase == "paused" and report.generation == self.generation.number

    def _ready(self) -> list[Worker]:
        """Return the ready workers that may join, in the order in which they connected."""
        ready = [one for one in self.workers.values() if one.state is WorkerState.READY]
        return [one for one in ready if self._is_listed(one)]
