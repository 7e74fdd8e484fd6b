"""Controller of a live cluster: its core, with the journal, the clock and the event loop."""

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
from presage.schedulers.core.failures.hazards import HazardForecaster
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.core.policy import Policy
from presage.schedulers.forecasters.outage_hazards import read_outage_hazards
from presage.schedulers.forecasters.prediction_cache import PredictionCache
from presage.schedulers.live.controller.clock import ClusterClock
from presage.schedulers.live.controller.cluster_metrics import ClusterMetrics
from presage.schedulers.live.controller.controller_core import MAX_ENDED_JOBS, Core
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.live.controller.journal.records import (
    ClusterCreated,
    HalfLifeChanged,
    LeaseChanged,
    Record,
    record_from_json,
    record_to_json,
)
from presage.schedulers.live.controller.node_events import node_events
from presage.schedulers.live.controller.replayed_state import ReplayedState
from presage.schedulers.live.tracing.job_spans import JobSpans
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.server.log import log
from presage.system.notifications.cloud_event import CloudEvent

T = TypeVar("T")

BATCH_S = 0.02  # changes within this time are decided on together
POLL_S = 1.0  # between checks for lost nodes
OWNERSHIP_S = 5.0  # validity of a check that the journal is this process's; less than END_S
HISTORY_S = 7 * 86_400.0  # retention of journal entries; their effect stays in the snapshot
SNAPSHOT_RECORDS = 5_000  # between snapshots: a restart reads no more records


@dataclass(frozen=True, slots=True)
class Leases:
    """Timeouts of agents.

    Attributes
    ----------
    lease_s : float
        Time from an agent's last acknowledged heartbeat to the end of its jobs.
    suspect_s : float
        Time from its last heartbeat after which it gets no more jobs.
    """

    lease_s: float = 120.0
    suspect_s: float = 15.0


class Controller:
    """Controller of a live cluster, in the running event loop.

    Parameters
    ----------
    forecaster : callable
        Returns a new forecaster, with an empty cache.
    hazards : HazardForecaster, optional
        Source of hazards for a policy that reads them; by default the pretrained model.
    metrics : ClusterMetrics, optional
        Metrics to update.
    notify : callable, optional
        Receives an event once its record is in the journal; must return at once.
    spans : JobSpans, optional
        Traces of jobs.

    Raises
    ------
    JournalError
        The journal has another version, or cannot be read.
    """

    def __init__(
        self,
        journal: Journal,
        policy: Policy,
        forecaster: Callable[[], Forecaster],
        leases: Leases,
        *,
        hazards: HazardForecaster | None = None,
        sharing: pb.Sharing | None = None,
        max_ended_jobs: int = MAX_ENDED_JOBS,
        snapshot_records: int = SNAPSHOT_RECORDS,
        metrics: ClusterMetrics | None = None,
        notify: Callable[[CloudEvent], object] | None = None,
        spans: JobSpans | None = None,
    ) -> None:
        self._notify_of, self.spans = notify, spans
        self.journal, self.sharing, self._metrics = journal, sharing, metrics
        self.make_forecaster = forecaster
        self._snapshot_records = snapshot_records
        self._owned_s = -math.inf  # last time that the journal was this process's
        rows, seq = journal.load()
        state = ReplayedState.from_rows(rows)
        for entry in journal.read(seq):
            state.apply(record_from_json(entry.record))
        self._clock = ClusterClock(state.clock, state.now_s)
        self._unsaved = journal.last_seq - seq
        self.forecasts = PredictionCache(
            forecaster,
            hazards=(hazards or read_outage_hazards()) if policy.needs.hazards else None,
        )
        self._forecast_failure = ""  # the last one that was logged
        self._policy_warning = ""  # as above
        self.core = Core(
            state,
            policy,
            self.forecasts.get,
            now_s=self.now_s(),
            lease_s=leases.lease_s,
            suspect_s=leases.suspect_s,
            max_ended_jobs=max_ended_jobs,
            version=secrets.randbits(40) << 16,
        )
        self._busy = asyncio.Lock()  # held while the core is read or changed
        self._woken = asyncio.Event()
        self._nodes: dict[str, asyncio.Event] = {}
        self._entries = asyncio.Condition()
        self.failure: JournalError | None = None  # the journal cannot be written any more

    def now_s(self) -> float:
        """Return the cluster's time in seconds."""
        return self._clock.now_s()

    async def begin(self) -> None:
        """Record a new cluster, a restart of the machine, a longer lease, and another half-life."""
        async with self._busy:
            if self._clock.unsaved is not None:
                await self._write([self._clock.unsaved])
            if not self.core.state.cluster_id:
                await self._write([ClusterCreated(secrets.token_hex(8), self.now_s())])
            if self.core.lease_s > self.core.state.lease_s:
                await self._write([LeaseChanged(self.core.lease_s, self.now_s())])
            half_life_s = self.core.policy.needs.fair_share_s
            if half_life_s not in (0.0, self.core.state.users.use.half_life_s):
                await self._write([HalfLifeChanged(half_life_s, self.now_s())])

    async def read(self, at: Callable[[Core, float], T]) -> T:
        """Return what a fast function reads from the core."""
        async with self._busy:
            return at(self.core, self.now_s())

    async def read_in_thread(self, at: Callable[[Core, float], T]) -> T:
        """Return what a slow function reads from the core, which does not change meanwhile.

        The function runs in a thread and may request forecasts.
        """

        async def in_thread() -> T:
            async with self._busy:
                return await asyncio.to_thread(at, self.core, self.now_s())

        return await _complete(in_thread())

    async def change(
        self, make: Callable[[Core, float, float], tuple[list[Record], T]], principal: str = ""
    ) -> T:
        """Write records to disk and apply them to the core.

        Parameters
        ----------
        make : callable
            Returns the records, and a result to return.
        principal : str
            Name of the client that caused the change, for the records.

        Raises
        ------
        JournalError
            The records could not be written; nothing has changed.
        """
        # The client may disconnect at any moment; a change that has begun must be completed.
        return await _complete(self._change(make, principal))

    async def report(self, report: pb.NodeReport, principal: str = "") -> bool:
        """Process a report; return whether it renews the agent's lease.

        It does not if another controller may own the journal, and grant other leases.

        Raises
        ------
        RefusedAgentError
            Another agent has the node's name, or its devices conflict with those of other nodes.
        JournalError
            A new node could not be recorded.
        """

        def make(core: Core, now_s: float, now_unix_s: float) -> tuple[list[Record], None]:
            reason = core.rejection_reason(report)
            if reason:
                raise RefusedAgentError(reason)
            return core.report(report, now_s, now_unix_s), None

        try:
            await self.change(make, principal)
        except JournalError as error:
            if self.failure is not None or not self._is_known(report.node):
                raise
            # The report still counts, so that jobs continue; the agent repeats its content.
            self.core.unsettle(report.node)
            log(logging.ERROR, "report not recorded", node=report.node, error=str(error))
        async with self._busy:
            if self.core.note_report(report, self.now_s()):
                self._woken.set()
        return self._owns_journal()

    async def repeat(self, report: pb.NodeReport, principal: str = "") -> bool:
        """Process a heartbeat of a node whose state is still that of an earlier report.

        Parameters, result and errors are as of :meth:`report`.
        """
        async with self._busy:
            if self.core.note_repeat(report, self.now_s()):
                return self._owns_journal()
        return await self.report(report, principal)

    async def run(self) -> None:
        """Make decisions after changes, and find lost nodes."""
        while True:
            await self._wait_for_change()
            if self.failure is not None:
                raise self.failure
            try:
                await self._step()
            except JournalError as error:
                log(logging.ERROR, "no decision", error=str(error))
                await asyncio.sleep(POLL_S)
                self._woken.set()

    def commands_event(self, node: str) -> asyncio.Event:
        """Return the event that is set when a node's commands may have changed."""
        return self._nodes.setdefault(node, asyncio.Event())

    async def wait_for_entry_after(self, seq: int) -> None:
        """Wait until the journal has an entry after ``seq``."""
        async with self._entries:
            await self._entries.wait_for(lambda: self.journal.last_seq > seq)

    # ----------------------------------------------------------------------------------------

    def _owns_journal(self) -> bool:
        return self.now_s() - self._owned_s < OWNERSHIP_S

    def _is_known(self, node: str) -> bool:
        known = self.core.state.nodes.get(node)
        return known is not None and not known.lost

    async def _change(
        self, make: Callable[[Core, float, float], tuple[list[Record], T]], principal: str
    ) -> T:
        async with self._busy:
            records, result = make(self.core, self.now_s(), time.time())
            await self._write(records, principal)
        self._notify(records)
        return result

    async def _wait_for_change(self) -> None:
        wait_s = min(POLL_S, max(0.0, self.core.wake_s - self.now_s()))
        try:
            await asyncio.wait_for(self._woken.wait(), wait_s)
        except TimeoutError:
            return
        await asyncio.sleep(BATCH_S)
        self._woken.clear()

    async def _step(self) -> None:
        core = self.core
        async with self._busy:
            try:
                await asyncio.to_thread(self.journal.check)
            except JournalError as error:
                self._check_failure(error)
                raise
            self._owned_s = self.now_s()
            lost = core.find_lost(self.now_s(), time.time())
            await self._write(lost)
            due = core.end_due(self.now_s(), time.time())
            await self._write([*due, *core.prune(self.now_s())])
            began_s, began_ns = time.monotonic(), time.time_ns()
            decided = await asyncio.to_thread(core.decide, self.now_s(), time.time())
            took_s, ended_ns = time.monotonic() - began_s, time.time_ns()
            try:
                await self._write(decided)
            except JournalError:
                core.discard_decision()
                raise
            if self.spans is not None:
                self.spans.trace_decision(core.state, decided, began_ns, ended_ns)
            if self._metrics is not None:
                if decided:
                    self._metrics.observe_decision(took_s)
                self._metrics.update(core, self.now_s())
        self._log_forecast_failure()
        self._log_policy_warning()
        if core.problem:
            log(logging.ERROR, "the policy's decision cannot be applied", error=core.problem)
        if decided:
            log(logging.INFO, "decided", records=len(decided), seconds=round(took_s, 4))
        self._notify([*lost, *due, *decided])

    def _log_forecast_failure(self) -> None:
        """Log a failure of the forecaster once, and its recovery."""
        if self.forecasts.failure == self._forecast_failure:
            return
        self._forecast_failure = self.forecasts.failure
        if self._forecast_failure:
            log(logging.WARNING, "no forecasts", error=self._forecast_failure)
        else:
            log(logging.INFO, "forecasts are available again")

    def _log_policy_warning(self) -> None:
        """Log a warning of the policy once."""
        warning = self.core.policy.warning
        if warning and warning != self._policy_warning:
            log(logging.WARNING, "the policy", error=warning)
        self._policy_warning = warning

    async def _write(self, records: list[Record], principal: str = "") -> None:
        if not records:
            return
        rows = [record_to_json(record, principal) for record in records]
        try:
            seq = await asyncio.to_thread(self.journal.append, rows)
        except JournalError as error:
            self._check_failure(error)
            raise
        notify = self._notify_of
        events = [] if notify is None else [*node_events(self.core.state, records)]
        self.core.apply(records)
        if notify is not None:
            for event in events:
                notify(event)
        if self._metrics is not None:
            self._metrics.count(records)
        if self.spans is not None:
            self.spans.trace_ends(self.core.state, records)
        self._unsaved += len(records)
        if self._unsaved >= self._snapshot_records:
            await self._save(seq)
        async with self._entries:
            self._entries.notify_all()

    async def _save(self, seq: int) -> None:
        """Update the snapshot up to an entry; after a failure, the next records retry it."""
        state = self.core.state
        changed = state.take_changes()
        try:
            await asyncio.to_thread(self.journal.save, changed, seq)
            await asyncio.to_thread(self.journal.prune, time.time() - HISTORY_S)
        except Exception as error:
            state.changed_keys.update(changed.keys() - {"now"})
            if not isinstance(error, JournalError):
                raise
            self._check_failure(error)  # the records themselves are on disk
            log(logging.ERROR, "snapshot not written", error=str(error))
        else:
            self._unsaved = 0

    def _check_failure(self, error: JournalError) -> None:
        """End this process if the journal has closed itself."""
        if self.journal.is_closed and self.failure is None:
            self.failure = error
            self._woken.set()

    def _notify(self, records: list[Record]) -> None:
        """Wake the decision loop, and the streams of the nodes that records concern."""
        if not records:
            return
        self._woken.set()
        for record in records:
            for node in self.core.nodes_of(record):
                self.commands_event(node).set()


async def _complete(work: Coroutine[Any, Any, T]) -> T:
    """Complete work, even if the task that waits for it is cancelled."""
    task = asyncio.ensure_future(work)
    # Retrieve the error: after a cancellation nothing waits for it.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)
