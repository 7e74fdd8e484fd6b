"""Job management: the leader of an elastic job.

The leader decides which workers form the next generation, writes that to its journal, and only then
announces it. It takes no part in training: while it is down, workers continue, and they wait for it
at the next change of size. A leader that is started again replays its journal and waits for the
workers to connect again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from presage.training.data_set_grouping import Cursor, check_batch
from presage.training.generation import Generation
from presage.training.leader.job_config import JobConfig
from presage.training.leader.journal import Journal
from presage.training.leader.membership import (
    End,
    Fail,
    Finish,
    Form,
    Membership,
    Move,
    Pause,
    Worker,
)
from presage.training.leader.specification import check_specification
from presage.training.report import Report
from presage.training.wire import Message

MAX_EVENTS = 200
_QUICK_RETRIES, _MOST_DELAY_S = 3, 5.0


class Channel(Protocol):
    """Connection to a worker."""

    def send(self, message: Message) -> None:
        """Send a message; ignored if the connection is closed."""

    def close(self) -> None:
        """Close the connection."""


class Leader:
    """State of an elastic job and what is decided about it; does no network I/O itself.

    Parameters
    ----------
    journal : Journal
        Its records are replayed.
    log : callable
        Receives a line for each event.

    Attributes
    ----------
    outcome : str
        "", "done" or "failed".
    problem : str
        Why the leader cannot continue at the moment, for example a full disk.
    """

    def __init__(
        self, job: str, config: JobConfig, journal: Journal, log: Callable[[str], object]
    ) -> None:
        self.job, self.config, self.journal = job, config, journal
        self.membership = Membership(config, config.workers)
        self.outcome = self.problem = self.reason = ""
        self.committed = Cursor()
        self.specification: dict[str, Any] | None = None
        self.resize_requests = 0
        self.events: deque[str] = deque(maxlen=MAX_EVENTS)
        self.progress: dict[str, Cursor] = {}  # of the last heartbeat of each worker
        self._log = log
        self._channels: dict[str, Channel] = {}
        self._last_message_s: dict[str, float] = {}
        self._released: set[str] = set()
        self._formed = 0  # last generation whose members all run
        self._first_ready_s: float | None = None
        self._fruitless, self._formed_s = 0, 0.0  # generations without a step; time of the last one
        self._replay()

    def connect(
        self, worker: Worker, specification: dict[str, Any], report: Report, channel: Channel
    ) -> None:
        """Enter a worker that connects, for the first time or again, and greet it.

        Raises
        ------
        ElasticError
            It is not a worker of this job.
        """
        worker_id = worker.worker_id
        check_specification(worker_id, specification, self.specification, self.config)
        if self.specification is None:
            self.journal.append({"type": "job", "specification": specification})
            self.specification = specification
        known = self.membership.workers.get(worker_id)
        if self.outcome:
            channel.send(self._end_message())
            return
        if report.generation and known is None and worker_id in self._released:
            channel.send({"op": "leave"})
            return
        if stale := self._channels.pop(worker_id, None):
            stale.close()
        self._channels[worker_id] = channel
        self._last_message_s[worker_id] = time.monotonic()
        is_removed = report.generation > 0 and known is None
        if known is None:
            self.membership.add(worker)
        else:
            known.host, known.port = worker.host, worker.port
        channel.send({"op": "welcome", "memory_bytes": self.config.memory_bytes})
        if is_removed:  # it was silent for too long: it can join again, without its state
            channel.send({"op": "removed"})
        else:
            self.enter_report(worker_id, report)

    def enter_report(self, worker_id: str, report: Report) -> None:
        """Enter a worker's report; repeat the current generation to a member that missed it."""
        self.membership.enter_report(worker_id, report)
        current = self.membership.generation
        if current and report.generation < current.number and current.has_member(worker_id):
            self._send(worker_id, {"op": "generation", **current.to_message()})
        self.advance()

    def note_message(self, worker_id: str) -> None:
        """Note that a worker is alive."""
        self._last_message_s[worker_id] = time.monotonic()

    def disconnect(self, worker_id: str, channel: Channel) -> None:
        """Remove a worker whose connection is lost, unless it has connected again."""
        if self._channels.get(worker_id) is channel:
            self.lose(worker_id, "ended")

    def lose(self, worker_id: str, reason: str) -> None:
        """Remove a worker."""
        channel = self._channels.pop(worker_id, None)
        if channel is not None:
            channel.close()
        if worker_id not in self.membership.workers or self.outcome:
            return
        self.note(f"worker {worker_id} {reason}")
        self.membership.remove(worker_id)
        self.advance()

    def resize(self, workers: int) -> None:
        """Change the requested number of workers.

        Raises
        ------
        ElasticError
            The number is outside the job's bounds, or is more than the batch.
        OSError
            The journal cannot be written. Nothing is changed.
        """
        self.config.check_size(workers)
        if self.specification is not None:
            check_batch(int(self.specification["batch"]), workers)
        self.journal.append({"type": "resize", "workers": workers})
        self.resize_requests += 1
        self.membership.resize(workers)
        self.note(f"resize to {workers} workers requested")
        self.advance()

    def tick(self, late_s: float) -> None:
        """Remove silent workers; called a few times a second.

        Parameters
        ----------
        late_s : float
            By how much this call is late, because this process was stopped or the machine is
            overloaded. Heartbeats of that time may be waiting to be read.
        """
        now_s = time.monotonic()
        for worker_id in list(self.membership.workers):
            self._last_message_s[worker_id] = self._last_message_s.get(worker_id, now_s) + late_s
            if now_s - self._last_message_s[worker_id] > self.config.silence_s:
                self.lose(worker_id, f"was silent for {self.config.silence_s:g} s: removed")
        if self.membership.generation is None and self.membership.workers:
            self._first_ready_s = self._first_ready_s or now_s
            is_overdue = now_s - self._first_ready_s > self.config.start_timeout_s
            self.membership.is_start_overdue = is_overdue
        self.advance()

    def note(self, text: str) -> None:
        """Log an event, and keep it for status requests."""
        self.events.append(text)
        self._log(text)

    def advance(self) -> None:
        """Carry out moves until there is none; with a full disk they are tried again later."""
        try:
            self._record_formed()
            while not self.outcome and (move := self.membership.next_move()) is not None:
                if isinstance(move, Form) and self._must_wait(move):
                    break
                self._carry_out(move)
        except OSError as error:
            problem = f"{self.journal.path}: {error.strerror}; the job waits"
            if problem != self.problem:
                self.note(problem)
            self.problem = problem
        else:
            self.problem = ""

    def _carry_out(self, move: Move) -> None:
        generation = self.membership.generation
        number = generation.number if generation else 0
        match move:
            case Pause():
                self._broadcast({"op": "pause", "generation": number})
            case End():
                self._broadcast({"op": "end", "generation": number})
            case Form():
                self._form(move)
            case Finish():
                self._finish("done", "", move.cursor)
            case Fail():
                self._finish("failed", move.reason, self.committed)

    def _form(self, move: Form) -> None:
        old = self.membership.generation
        generation = move.generation
        self.journal.append(
            {"type": "generation", **generation.to_message(), "released": list(move.released)}
        )
        for worker_id in move.released:
            self._send(worker_id, {"op": "leave"})
            self._channels.pop(worker_id, None)
        self._released.update(move.released)
        self.membership.adopt(move)
        self._formed_s = time.monotonic()
        for member in generation.members:
            self._send(member.worker_id, {"op": "generation", **generation.to_message()})
        before = f"{old.size} -> " if old else ""
        cursor = generation.cursor
        self.note(
            f"generation {generation.number}: {before}{generation.size} workers at step "
            f"{cursor.step} (epoch {cursor.epoch}, sample {cursor.position})"
        )

    def _finish(self, outcome: str, reason: str, cursor: Cursor) -> None:
        self.journal.append({"type": outcome, "reason": reason, "cursor": cursor.to_message()})
        self.outcome, self.reason = outcome, reason
        self.committed = cursor
        self.note(f"job {outcome} at step {cursor.step}" + (f": {reason}" if reason else ""))
        self._broadcast(self._end_message())

    def _end_message(self) -> Message:
        if self.outcome == "done":
            return {"op": "done"}
        return {"op": "error", "message": f"job {self.job!r} failed: {self.reason}"}

    def _must_wait(self, move: Form) -> bool:
        """Whether to delay a generation, because several with the same members took no step.

        That happens if two workers cannot connect to each other.
        """
        current = self.membership.generation
        if current is None or set(current.members) != set(move.generation.members):
            self._fruitless = 0
            return False
        if current.cursor != move.generation.cursor:
            self._fruitless = 0
        delay_s = min(0.1 * 2.0 ** (self._fruitless - _QUICK_RETRIES), _MOST_DELAY_S)
        if self._fruitless > _QUICK_RETRIES and time.monotonic() < self._formed_s + delay_s:
            return True
        self._fruitless += 1
        return False

    def _record_formed(self) -> None:
        """Record that all members of a generation have its state: its cursor is committed."""
        generation = self.membership.generation
        if generation and generation.number > self._formed and self.membership.is_formed():
            cursor = generation.cursor
            record = {"type": "formed", "generation": generation.number}
            self.journal.append({**record, "cursor": cursor.to_message()})
            self._formed, self.committed = generation.number, cursor

    def _send(self, worker_id: str, message: Message) -> None:
        if channel := self._channels.get(worker_id):
            channel.send(message)

    def _broadcast(self, message: Message) -> None:
        for channel in self._channels.values():
            channel.send(message)

    def _replay(self) -> None:
        for record in self.journal.records:
            match record["type"]:
                case "job":
                    self.specification = record["specification"]
                case "resize":
                    self.membership.desired = int(record["workers"])
                case "generation":
                    self.membership.generation = Generation.from_message(record)
                    self._released.update(record["released"])
                case "formed":
                    self._formed = int(record["generation"])
                    self.committed = Cursor.from_message(record["cursor"])
                case "done" | "failed":
                    self.outcome, self.reason = record["type"], record["reason"]
        if self.membership.generation is not None and not self.outcome:
            for one in self.membership.generation.members:
                self.membership.add(Worker(one.worker_id, one.host, one.port))
            self.membership.adopt(Form(self.membership.generation))
            self.note(f"continuing from the journal at generation {self.current}")

    @property
    def current(self) -> int:
        """Number of the current generation; 0 before the first one."""
        return self.membership.generation.number if self.membership.generation else 0
