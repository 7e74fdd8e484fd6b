"""Execution of what a leader decides: each move is in the journal before it is announced."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from presage.training.data_set_grouping import Cursor
from presage.training.generation import Generation
from presage.training.leader.channels import Channels
from presage.training.leader.job_config import JobConfig
from presage.training.leader.job_progress import JobProgress
from presage.training.leader.journal import Journal
from presage.training.leader.membership import Membership
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
from presage.training.leader.replay import replay
from presage.training.leader.retries import Retries
from presage.training.leader.specification import capacity
from presage.training.wire import Message, error_message

MAX_EVENTS = 200


class Execution:
    """State of an elastic job at its leader, and the execution of moves that change it.

    Parameters
    ----------
    journal : Journal
        Its records are replayed.
    log : callable
        Receives a line for each event.

    Attributes
    ----------
    outcome : str
        "", "done", "failed" or "suspended".
    problem : str
        Why the leader cannot continue at the moment, for example a full disk.
    is_superseded : bool
        Whether a worker follows another leader of the job, so that this one decides nothing.
    """

    def __init__(
        self, job: str, config: JobConfig, journal: Journal, log: Callable[[str], object]
    ) -> None:
        self.job, self.config, self.journal = job, config, journal
        record = replay(journal.records)
        self.outcome, self.reason, self.problem = record.outcome, record.reason, ""
        self.specification, self.committed = record.specification, record.committed
        self.membership = Membership(config, record.size or config.workers, record.names)
        self.resize_requests, self.is_superseded = 0, False
        self.events: deque[str] = deque(maxlen=MAX_EVENTS)
        self.progress = JobProgress()
        self._log = log
        self.channels = Channels()
        self._released, self._formed = record.released, record.formed
        self._is_adopted = record.is_adopted  # whether the generation is one of a worker
        self._has_size = record.size > 0  # whether the journal has a resize
        self.first_ready_s: float | None = None
        self._retries = Retries()
        self._save_problem = ""
        self._limit_size()
        if record.generation is not None and not self.outcome:
            self._continue_from(record.generation)
            self.note(f"continuing from the journal at generation {self.current}")

    @property
    def current(self) -> int:
        """Number of the current generation; 0 before the first one."""
        return self.membership.generation.number if self.membership.generation else 0

    def note(self, text: str) -> None:
        """Log an event, and keep it for status requests."""
        self.events.append(text)
        self._log(text)

    def advance(self) -> None:
        """Carry out moves until there is none; with a full disk they are tried again later."""
        try:
            self._record_formed()
            while not self._is_over() and (move := self.membership.next_move()) is not None:
                if isinstance(move, Form):
                    current = self.membership.generation
                    if pair := self._retries.take_cut_off(current):
                        self._remove_cut_off(*pair)
                        continue
                    if self._retries.must_wait(current, move.generation):
                        break
                self._carry_out(move)
        except OSError as error:
            self.note_problem(error)
        else:
            self.problem = ""

    def _is_over(self) -> bool:
        return bool(self.outcome) or self.is_superseded

    def note_problem(self, error: OSError) -> None:
        """Note that the journal cannot be written."""
        problem = f"{self.journal.path}: {error.strerror}; the job waits"
        if problem != self.problem:
            self.note(problem)
        self.problem = problem

    def _limit_size(self) -> None:
        """Limit the size of generations to the capacity of the job, once that is known."""
        if self.specification is not None:
            self.membership.capacity = capacity(self.specification)

    def _continue_from(self, generation: Generation) -> None:
        """Make a generation of the journal, or of a worker, the current one."""
        if self._is_adopted and not self._has_size:
            low, high = self.config.min_workers, self.config.max_workers
            self.membership.desired = min(high, max(low, generation.size))
        self.membership.readmit(generation, self._released, self.channels)

    def _carry_out(self, move: Move) -> None:
        generation = self.membership.generation
        number = generation.number if generation else 0
        match move:
            case Pause():
                self.channels.broadcast({"op": "pause", "generation": number})
            case End():
                self.channels.broadcast({"op": "end", "generation": number})
            case Form():
                self._form(move)
            case Save():
                self.channels.send(move.worker_id, {"op": "checkpoint"})
            case Release():
                self._journal_released(move.worker_ids)
                for worker_id in move.worker_ids:
                    self._release(worker_id)
                    self.membership.remove(worker_id)
            case Finish():
                self._finish("done", "", move.cursor)
            case Suspend():
                self._finish("suspended", self._suspended_reason(), move.cursor)
            case Fail():
                self._finish("failed", move.reason, self.committed)

    def _form(self, move: Form) -> None:
        old = self.membership.generation
        generation = move.generation
        self.journal.append(
            {"type": "generation", **generation.to_message(), "released": list(move.released)}
        )
        for worker_id in move.released:
            self._release(worker_id)
        self.membership.adopt(move)
        self._is_adopted = False
        self._retries.note_formed()
        for member in generation.members:
            self.channels.send(member.worker_id, {"op": "generation", **generation.to_message()})
        before = f"{old.size} -> " if old else ""
        cursor = generation.cursor
        self.note(
            f"generation {generation.number}: {before}{generation.size} workers at step "
            f"{cursor.step} (epoch {cursor.epoch}, sample {cursor.position})"
        )

    def _journal_released(self, worker_ids: Sequence[str]) -> None:
        self.journal.append({"type": "released", "released": list(worker_ids)})

    def _release(self, worker_id: str, message: Message | None = None) -> None:
        """Send a worker its release, and do not take it back if it connects again."""
        self.channels.release(worker_id, message or {"op": "leave"})
        self._released.add(worker_id)

    def _remove_cut_off(self, worker_id: str, other: str) -> None:
        """Remove a worker for good that cannot connect to another one."""
        self._journal_released([worker_id])
        text = f"worker {worker_id} cannot connect to {other}: removed"
        self._release(worker_id, error_message(text))
        self.note(text)
        self.membership.remove(worker_id)

    def _finish(self, outcome: str, reason: str, cursor: Cursor) -> None:
        self.journal.append({"type": outcome, "reason": reason, "cursor": cursor.to_message()})
        self.outcome, self.reason = outcome, reason
        self.committed = cursor
        before = "; " if outcome == "suspended" else ": "
        self.note(f"job {outcome} at step {cursor.step}" + (f"{before}{reason}" if reason else ""))
        self.channels.broadcast(self._end_message(is_new=False))

    def _suspended_reason(self) -> str:
        if self._save_problem:
            return f"nothing is saved ({self._save_problem})"
        return "start it again to continue from its checkpoint"

    def _end_message(self, *, is_new: bool) -> Message:
        if self.outcome == "done":
            return {"op": "done"}
        if self.outcome == "suspended" and not is_new:
            return {"op": "leave"}
        outcome = "is suspended" if self.outcome == "suspended" else self.outcome
        return error_message(f"job {self.job!r} {outcome}: {self.reason}")

    def _record_formed(self) -> None:
        """Record that all members of a generation have its state: its cursor is committed."""
        generation = self.membership.generation
        if generation and generation.number > self._formed and self.membership.is_formed():
            cursor = generation.cursor
            record = {"type": "formed", "generation": generation.number}
            self.journal.append({**record, "cursor": cursor.to_message()})
            self._formed, self.committed = generation.number, cursor
