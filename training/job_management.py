"""Job management: the leader of an elastic job.

The leader decides which workers form the next generation, writes that to its journal, and only then
announces it. It takes no part in training: while it is down, workers continue, and they wait for it
at the next change of size. A leader that is started again replays its journal and waits for the
workers to connect again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from presage.training.data_set_grouping import Cursor, check_batch
from presage.training.generation import Generation
from presage.training.leader.channels import Channel, Channels
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
from presage.training.leader.specification import check_specification
from presage.training.leader.worker import Worker
from presage.training.report import Report
from presage.training.wire import Message, error_message

MAX_EVENTS = 200


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
        "", "done", "failed" or "suspended".
    problem : str
        Why the leader cannot continue at the moment, for example a full disk.
    """

    def __init__(
        self, job: str, config: JobConfig, journal: Journal, log: Callable[[str], object]
    ) -> None:
        self.job, self.config, self.journal = job, config, journal
        record = replay(journal.records)
        self.outcome, self.reason, self.problem = record.outcome, record.reason, ""
        self.specification, self.committed = record.specification, record.committed
        self.membership = Membership(config, record.size or config.workers, record.names)
        self.resize_requests = 0
        self.events: deque[str] = deque(maxlen=MAX_EVENTS)
        self.progress = JobProgress()
        self._log = log
        self._channels = Channels()
        self._released, self._formed = record.released, record.formed
        self._is_adopted = record.is_adopted  # whether the generation is one of a worker
        self._has_size = record.size > 0  # whether the journal has a resize
        self._first_ready_s: float | None = None
        self._retries = Retries()
        self._save_problem = ""
        if record.generation is not None and not self.outcome:
            self._continue_from(record.generation)
            self.note(f"continuing from the journal at generation {self.current}")

    def connect(
        self,
        worker: Worker,
        specification: dict[str, Any],
        report: Report,
        channel: Channel,
        generation: Generation | None = None,
    ) -> None:
        """Enter a worker that connects, for the first time or again, and greet it.

        Parameters
        ----------
        generation : Generation, optional
            Last one that was announced to it. A leader without one in its journal adopts it.

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
        if self.outcome:
            channel.send(self._end_message(is_new=report.generation == 0))
            return
        if generation and report.generation and report.has_state:
            self._adopt(generation, worker_id)
        known = self.membership.workers.get(worker_id)
        if known is not None and report.generation > self.current:
            self.membership.remove(worker_id)  # of a generation that no journal has
            known = None
        if report.generation and known is None and worker_id in self._released:
            channel.send({"op": "leave"})
            return
        self._channels.add(worker_id, channel)
        is_removed = report.generation > 0 and known is None
        if known is None:
            self.membership.add(worker)
        else:
            self.membership.reconnect(worker_id, worker.host, worker.port)
        channel.send({"op": "welcome", "memory_bytes": self.config.memory_bytes})
        if is_removed:  # it was silent for too long: it can join again, without its state
            channel.send({"op": "removed"})
        else:
            self.enter_report(worker_id, report)

    def _adopt(self, generation: Generation, worker_id: str) -> None:
        """Continue from a worker's generation, if the journal has none or adopted an older one."""
        is_newer = self._is_adopted and generation.number > self.current
        if not (is_newer or self.current == 0) or not generation.has_member(worker_id):
            return
        self.journal.append({"type": "adopted", **generation.to_message()})
        self._is_adopted = True
        for one in self.membership.members():
            if not generation.has_member(one.worker_id):
                self._channels.send(one.worker_id, {"op": "removed"})
        self._continue_from(generation)
        for member in generation.members:
            self._channels.send(member.worker_id, {"op": "generation", **generation.to_message()})
        self.note(f"generation {generation.number} of {generation.size} workers adopted")

    def _continue_from(self, generation: Generation) -> None:
        """Make a generation of the journal, or of a worker, the current one."""
        if self._is_adopted and not self._has_size:
            low, high = self.config.min_workers, self.config.max_workers
            self.membership.desired = min(high, max(low, generation.size))
        self.membership.readmit(generation, self._released, self._channels)

    def enter_report(self, worker_id: str, report: Report) -> None:
        """Enter a worker's report; repeat the current generation to a member that missed it."""
        self.membership.enter_report(worker_id, report)
        current = self.membership.generation
        if report.unreachable and report.generation == self.current:
            self._retries.note_unreachable(self.current, worker_id, report.unreachable)
        if current and report.generation < current.number and current.has_member(worker_id):
            self._channels.send(worker_id, {"op": "generation", **current.to_message()})
        self.advance()

    def note_message(self, worker_id: str) -> None:
        """Note that a worker is alive."""
        self._channels.note_message(worker_id)

    def disconnect(self, worker_id: str, channel: Channel) -> None:
        """Remove a worker whose connection is lost, unless it has connected again."""
        if self._channels.has(worker_id, channel):
            self.lose(worker_id, "ended")

    def lose(self, worker_id: str, reason: str) -> None:
        """Remove a worker."""
        self._channels.close(worker_id)
        if worker_id not in self.membership.workers or self.outcome:
            return
        self.note(f"worker {worker_id} {reason}")
        self.membership.remove(worker_id)
        self.advance()

    def leave(self, worker_id: str) -> None:
        """Let a worker leave that requests it: at once, or at the end of the current step."""
        if self.membership.workers[worker_id].is_departing:
            return
        if self.membership.leave(worker_id):
            self._release(worker_id)
        self.note(f"worker {worker_id} leaves")
        self.advance()

    def enter_saved(self, worker_id: str, cursor: Cursor, problem: str) -> None:
        """Enter that a worker wrote the requested checkpoint, or why it could not."""
        self._save_problem = problem
        if problem:
            self.note(f"nothing is saved at step {cursor.step}: {problem}")
        else:
            self.note(f"checkpoint of step {cursor.step} saved by worker {worker_id}")
        self.membership.enter_saved(worker_id)
        self.advance()

    def resize(self, workers: int, names: Sequence[str] | None = None) -> None:
        """Change the requested number of workers.

        Parameters
        ----------
        names : sequence of str, optional
            Names of the workers that may take part. Others leave first and do not join.

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
        names = None if names is None else sorted(set(names))
        self.journal.append({"type": "resize", "workers": workers, "names": names})
        self._has_size = True
        self.resize_requests += 1
        self.membership.resize(workers, names)
        of = "" if names is None else f", of {', '.join(names)}"
        self.note(f"resize to {workers} workers requested{of}")
        self.advance()

    def tick(self, late_s: float) -> None:
        """Remove silent workers; called a few times a second.

        Parameters
        ----------
        late_s : float
            By how much this call is late, because this process was stopped or the machine is
            overloaded. Heartbeats of that time may be waiting to be read.
        """
        for worker_id in list(self.membership.workers):
            if self._channels.silent_s(worker_id, late_s) > self.config.silence_s:
                self.lose(worker_id, f"was silent for {self.config.silence_s:g} s: removed")
        if self.membership.generation is None and self.membership.workers:
            now_s = time.monotonic()
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

    def note_problem(self, error: OSError) -> None:
        """Note that the journal cannot be written."""
        problem = f"{self.journal.path}: {error.strerror}; the job waits"
        if problem != self.problem:
            self.note(problem)
        self.problem = problem

    def _carry_out(self, move: Move) -> None:
        generation = self.membership.generation
        number = generation.number if generation else 0
        match move:
            case Pause():
                self._channels.broadcast({"op": "pause", "generation": number})
            case End():
                self._channels.broadcast({"op": "end", "generation": number})
            case Form():
                self._form(move)
            case Save():
                self._channels.send(move.worker_id, {"op": "checkpoint"})
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
            self._channels.send(member.worker_id, {"op": "generation", **generation.to_message()})
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
        self._channels.release(worker_id, message or {"op": "leave"})
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
        self._channels.broadcast(self._end_message(is_new=False))

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

    @property
    def current(self) -> int:
        """Number of the current generation; 0 before the first one."""
        return self.membership.generation.number if self.membership.generation else 0
