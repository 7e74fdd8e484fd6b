"""Job management: the leader of an elastic job.

The leader decides which workers form the next generation, writes that to its journal, and only then
announces it. It takes no part in training: while it is down, workers continue, and they wait for it
at the next change of size. A leader that is started again replays its journal and waits for the
workers to connect again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from presage.training.data_set_grouping import Cursor
from presage.training.generation import Generation
from presage.training.leader.channels import Channel
from presage.training.leader.execution import Execution
from presage.training.leader.specification import check_capacity, check_specification
from presage.training.leader.worker import Worker
from presage.training.report import Report


class Leader(Execution):
    """Leader of an elastic job: enters what happens to its workers; does no network I/O itself."""

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
        self._enter_specification(worker.worker_id, specification)
        if self.outcome:
            channel.send(self._end_message(is_new=report.generation == 0))
            return
        if generation and report.generation and report.has_state:
            self._adopt(generation, worker.worker_id)
        self._admit(worker, report, channel)

    def _enter_specification(self, worker_id: str, specification: dict[str, Any]) -> None:
        """Check what a worker trains; the first worker's specification is the job's."""
        check_specification(worker_id, specification, self.specification, self.config)
        if self.specification is not None:
            return
        self.journal.append({"type": "job", "specification": specification})
        self.specification = specification
        self._limit_size()
        limit = self.membership.capacity
        if self.membership.desired > limit:
            self.note(
                f"the job trains with at most {limit} workers: batch={specification['batch']}, "
                f"virtual_shards={specification['virtual_shards']}; others stay ready"
            )

    def _admit(self, worker: Worker, report: Report, channel: Channel) -> None:
        """Enter a worker of this job and greet it, unless it was released."""
        worker_id = worker.worker_id
        known = self.membership.workers.get(worker_id)
        if known is not None and report.generation > self.current:
            self.membership.remove(worker_id)  # of a generation that no journal has
            known = None
        if report.generation and known is None and worker_id in self._released:
            channel.send({"op": "leave"})
            return
        self.channels.add(worker_id, channel)
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
                self.channels.send(one.worker_id, {"op": "removed"})
        self._continue_from(generation)
        for member in generation.members:
            self.channels.send(member.worker_id, {"op": "generation", **generation.to_message()})
        self.note(f"generation {generation.number} of {generation.size} workers adopted")

    def enter_report(self, worker_id: str, report: Report) -> None:
        """Enter a worker's report; repeat the current generation to a member that missed it."""
        self.membership.enter_report(worker_id, report)
        current = self.membership.generation
        if report.unreachable and report.generation == self.current:
            self._retries.note_unreachable(self.current, worker_id, report.unreachable)
        if current and report.generation < current.number and current.has_member(worker_id):
            self.channels.send(worker_id, {"op": "generation", **current.to_message()})
        self.advance()

    def note_message(self, worker_id: str) -> None:
        """Note that a worker is alive."""
        self.channels.note_message(worker_id)

    def disconnect(self, worker_id: str, channel: Channel) -> None:
        """Remove a worker whose connection is lost, unless it has connected again."""
        if self.channels.has(worker_id, channel):
            self.lose(worker_id, "ended")

    def lose(self, worker_id: str, reason: str) -> None:
        """Remove a worker."""
        self.channels.close(worker_id)
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
            The number is outside the job's bounds, or more than its batch or virtual shards.
        OSError
            The journal cannot be written. Nothing is changed.
        """
        self.config.check_size(workers)
        if self.specification is not None:
            check_capacity(self.specification, workers)
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
            if self.channels.silent_s(worker_id, late_s) > self.config.silence_s:
                self.lose(worker_id, f"was silent for {self.config.silence_s:g} s: removed")
        if self.membership.generation is None and self.membership.workers:
            now_s = time.monotonic()
            self.first_ready_s = self.first_ready_s or now_s
            is_overdue = now_s - self.first_ready_s > self.config.start_timeout_s
            self.membership.is_start_overdue = is_overdue
        self.advance()
