"""The controller at work: its core with a journal and clocks, asked whenever things change."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from presage.errors import JournalError, RefusedAgentError
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.core.policy import Policy
from presage.schedulers.forecasters.prediction_cache import PredictionCache
from presage.schedulers.live.controller.clock import ClusterClock
from presage.schedulers.live.controller.cluster_metrics import ClusterMetrics
from presage.schedulers.live.controller.controller_core import MOST_OVER, Core
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.live.controller.journal.records import (
    ClusterCreated,
    LeaseChanged,
    Record,
    of_json,
    to_json,
)
from presage.schedulers.live.controller.replayed_state import ReplayedState
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.server.log import log

T = TypeVar("T")

TOGETHER_S = 0.02  # changes that come so soon after another are decided on with it
LOOK_S = 1.0  # from one look at who is silent to the next
SURE_S = 5.0  # from one look at whose the journal is to the next, at most; less than END_S
HISTORY_S = 7 * 86_400.0  # that entries are kept for; what they say of jobs stays in the book
SNAPSHOT_RECORDS = 5_000  # after so many the book's rows are saved: a restart reads no more


@dataclass(frozen=True, slots=True)
class Leases:
    """How long agents are waited for.

    Attributes
    ----------
    lease_s : float
        From an agent's last heartbeat that was answered to when its jobs are ended.
    suspect_s : float
        From its last heartbeat to when it is given no more jobs.
    """

    lease_s: float = 120.0
    suspect_s: float = 15.0


class Controller:
    """A live cluster's controller, in the running event loop.

    Parameters
    ----------
    forecaster : callable
        One that remembers nothing yet.
    metrics : ClusterMetrics, optional
        What to count in.

    Raises
    ------
    JournalError
        The journal is of another version, or cannot be read.
    """

    def __init__(
        self,
        journal: Journal,
        policy: Policy,
        forecaster: Callable[[], Forecaster],
        leases: Leases,
        *,
        sharing: pb.Sharing | None = None,
        most_over: int = MOST_OVER,
        snapshot_records: int = SNAPSHOT_RECORDS,
        metrics: ClusterMetrics | None = None,
    ) -> None:
        self.journal, self.sharing, self._metrics = journal, sharing, metrics
        self._snapshot_records = snapshot_records
        self._sure_s = -math.inf  # when the journal was last this process's for sure
        rows, seq = journal.load()
        book = ReplayedState.of_rows(rows)
        for entry in journal.read(seq):
            book.apply(of_json(entry.record))
        self._clock = ClusterClock(book.clock, book.now_s)
        self._unsaved = journal.last_seq - seq
        self.forecasts = PredictionCache(forecaster)
        self._missing = ""  # what was last said to be wrong of them
        self.core = Core(
            book,
            policy,
            self.forecasts.get,
            now_s=self.now_s(),
            lease_s=leases.lease_s,
            suspect_s=leases.suspect_s,
            most_over=most_over,
            version=secrets.randbits(40) << 16,
        )
        self._busy = asyncio.Lock()  # held by whoever looks at the core or changes it
        self._woken = asyncio.Event()
        self._nodes: dict[str, asyncio.Event] = {}
        self._entries = asyncio.Condition()
        self.failure: JournalError | None = None  # nothing can be written any more

    def now_s(self) -> float:
        """The cluster's time."""
        return self._clock.now_s()

    async def begin(self) -> None:
        """Note what is new: the cluster, the machine's boot, a lease longer than any before."""
        async with self._busy:
            if self._clock.new is not None:
                await self._write([self._clock.new])
            if not self.core.book.cluster_id:
                await self._write([ClusterCreated(secrets.token_hex(8), self.now_s())])
            if self.core.lease_s > self.core.book.lease_s:
                await self._write([LeaseChanged(self.core.lease_s, self.now_s())])

    async def look(self, at: Callable[[Core, float], T]) -> T:
        """What somebody sees in the core at a glance."""
        async with self._busy:
            return at(self.core, self.now_s())

    async def survey(self, at: Callable[[Core, float], T]) -> T:
        """What somebody sees in all of the core; others are served meanwhile, but do not change it.

        It may have to ask the forecaster.
        """

        async def in_thread() -> T:
            async with self._busy:
                return await asyncio.to_thread(at, self.core, self.now_s())

        return await _to_its_end(in_thread())

    async def change(
        self, make: Callable[[Core, float, float], tuple[list[Record], T]], principal: str = ""
    ) -> T:
        """Change the core by records; when this returns they are on disk.

        Parameters
        ----------
        principal : str
            Name of the caller that causes the change, which the records keep.

        Raises
        ------
        JournalError
            They could not be written; nothing has changed.
        """
        # Whoever asked may go at any moment; what is half written must be known here all the same.
        return await _to_its_end(self._change(make, principal))

    async def report(self, report: pb.NodeReport, principal: str = "") -> bool:
        """What an agent says, and its caller's name; whether that renews its lease.

        It does not where another controller may have the journal, and promise otherwise.

        Raises
        ------
        RefusedAgentError
            Another agent has the node's name, or its devices cannot be among the others.
        JournalError
            A node that is new could not be noted.
        """

        def follows(core: Core, now_s: float, now_unix_s: float) -> tuple[list[Record], None]:
            reason = core.refuses(report)
            if reason:
                raise RefusedAgentError(reason)
            return core.report(report, now_s, now_unix_s), None

        try:
            await self.change(follows, principal)
        except JournalError as error:
            if self.failure is not None or not self._known(report.node):
                raise
            # It is heard nevertheless, so that jobs run on; the agent says all of it again.
            log(logging.ERROR, "not noted", node=report.node, error=str(error))
        async with self._busy:
            if self.core.heard(report, self.now_s()):
                self._woken.set()
        return self.now_s() - self._sure_s < SURE_S

    async def run(self) -> None:
        """Decide whenever something has changed, and look at who is silent."""
        while True:
            await self._next()
            if self.failure is not None:
                raise self.failure
            try:
                await self._step()
            except JournalError as error:
                log(logging.ERROR, "not decided", error=str(error))
                await asyncio.sleep(LOOK_S)
                self._woken.set()

    def orders_event(self, node: str) -> asyncio.Event:
        """Set when a node's orders may have changed."""
        return self._nodes.setdefault(node, asyncio.Event())

    async def entries_after(self, seq: int) -> None:
        """Returns when the journal has an entry after that one."""
        async with self._entries:
            await self._entries.wait_for(lambda: self.journal.last_seq > seq)

    # ----------------------------------------------------------------------------------------

    def _known(self, node: str) -> bool:
        known = self.core.book.nodes.get(node)
        return known is not None and not known.lost

    async def _change(
        self, make: Callable[[Core, float, float], tuple[list[Record], T]], principal: str
    ) -> T:
        async with self._busy:
            records, result = make(self.core, self.now_s(), time.time())
            await self._write(records, principal)
        self._tell(records)
        return result

    async def _next(self) -> None:
        wait_s = min(LOOK_S, max(0.0, self.core.wake_s - self.now_s()))
        try:
            await asyncio.wait_for(self._woken.wait(), wait_s)
        except TimeoutError:
            return
        await asyncio.sleep(TOGETHER_S)
        self._woken.clear()

    async def _step(self) -> None:
        core = self.core
        async with self._busy:
            try:
                await asyncio.to_thread(self.journal.check)
            except JournalError as error:
                self._failed(error)
                raise
            self._sure_s = self.now_s()
            lost = core.silent(self.now_s(), time.time())
            await self._write([*lost, *core.forgets(self.now_s())])
            began_s = time.monotonic()
            decided = await asyncio.to_thread(core.decide, self.now_s(), time.time())
            took_s = time.monotonic() - began_s
            try:
                await self._write(decided)
            except JournalError:
                core.undo()
                raise
            if self._metrics is not None:
                if decided:
                    self._metrics.decided(took_s)
                self._metrics.look(core, self.now_s())
        self._say_missing()
        if core.problem:
            log(logging.ERROR, "the policy wants what cannot be", error=core.problem)
        if decided:
            log(logging.INFO, "decided", records=len(decided), seconds=round(took_s, 4))
        self._tell([*lost, *decided])

    def _say_missing(self) -> None:
        """Log what is wrong with who foretells, once; and that nothing is any more."""
        if self.forecasts.failure == self._missing:
            return
        self._missing = self.forecasts.failure
        if self._missing:
            log(logging.WARNING, "nothing is foretold", error=self._missing)
        else:
            log(logging.INFO, "jobs are foretold again")

    async def _write(self, records: list[Record], principal: str = "") -> None:
        if not records:
            return
        rows = [to_json(record, principal) for record in records]
        try:
            seq = await asyncio.to_thread(self.journal.append, rows)
        except JournalError as error:
            self._failed(error)
            raise
        self.core.apply(records)
        if self._metrics is not None:
            self._metrics.count(records)
        self._unsaved += len(records)
        if self._unsaved >= self._snapshot_records:
            await self._save(seq)
        async with self._entries:
            self._entries.notify_all()

    async def _save(self, seq: int) -> None:
        """Bring the snapshot up to an entry; where that fails, it is tried again with the next."""
        book = self.core.book
        changed = book.changed()
        try:
            await asyncio.to_thread(self.journal.save, changed, seq)
            await asyncio.to_thread(self.journal.prune, time.time() - HISTORY_S)
        except Exception as error:
            book.touched.update(changed.keys() - {"now"})
            if not isinstance(error, JournalError):
                raise
            self._failed(error)  # the records themselves are on disk
            log(logging.ERROR, "no snapshot", error=str(error))
        else:
            self._unsaved = 0

    def _failed(self, error: JournalError) -> None:
        """Of a journal that has closed itself nothing more comes: then this process is to end."""
        if self.journal.closed and self.failure is None:
            self.failure = error
            self._woken.set()

    def _tell(self, records: list[Record]) -> None:
        """Let whoever it concerns know."""
        if not records:
            return
        self._woken.set()
        for record in records:
            job = self.core.book.jobs.get(getattr(record, "job_id", ""))
            node = getattr(record, "node", "") or (job.node if job is not None else "")
            if node:
                self.orders_event(node).set()


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Do work to its end, also where whoever waits for it is cancelled."""
    task = asyncio.ensure_future(work)
    # An error that nobody waits for any more was the cancelled one's.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)
