"""Drift detection and offsets by the outcome log, in a background thread.

It reads the log instead of the reports that this process received. So every worker gets the same
result, and a restarted server gets the result of the newest rows of the log.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from presage.errors import PresageError
from presage.models.drift.drift_test import NO_DRIFT, DriftMonitor, DriftPolicy, Row
from presage.serving.offsets.offset_learner import OffsetLearner
from presage.serving.outcomes.judged import Judge
from presage.serving.outcomes.outcome_log import (
    ReportedOutcome,
    last_position,
    read_outcomes,
    withdrawn_keys,
)
from presage.serving.predictor.predictor import Predictor
from presage.serving.predictor.served_release import Served
from presage.serving.server.log import log
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.v1 import prediction_pb2 as pb
from presage.system.files.log_address import LogAddress

MAX_ROWS = 10_000  # newest rows that are evaluated at start or after a delay; earlier ones are not
_BATCH_ROWS, _DATABASE_ROWS = 16, 1_000
# Pause in s per second of work, because calls have priority.
_PAUSE_FACTOR, _MAX_PAUSE_S = 9, 1.0


class ReleaseOutcomes:
    """Outcomes of one release in a log, and their drift statistics.

    Attributes
    ----------
    outcomes : int
        Outcomes that were read. ``other_releases`` of them belong to another release and
        ``without_release`` name none; the rest is evaluated unless the job failed.
    refused : int
        Outcomes that cannot be parsed or describe an impossible job.
    learner : OffsetLearner
        Offsets of the release's forecasts.
    """

    def __init__(self, predictor: Predictor, policy: DriftPolicy) -> None:
        self.predictor = predictor
        self.drift = DriftMonitor(predictor.guarantees, policy)
        self.outcomes = self.other_releases = self.without_release = self._unreadable = 0
        self._judge = Judge(predictor)
        self.learner = OffsetLearner()
        self._withdrawn: set[str] = set()

    @property
    def refused(self) -> int:  # noqa: D102 - above
        return self._unreadable + self._judge.refused

    @property
    def missing(self) -> int:
        """Co-located outcomes of jobs without an earlier solo outcome."""
        return self._judge.missing

    def add(self, rows: Iterable[ReportedOutcome]) -> None:
        """Add rows of a log in their order."""
        for run in self._judge.judge_runs(self._select(rows)):
            self.drift.add(run.quantities, self.learner.correct(run))
            self.learner.add(run)

    def withdraw(self, key: str) -> None:
        """Remove an outcome from the offsets, and ignore it in rows that are added later."""
        self._withdrawn.add(key)
        self.learner.withdraw(key)

    def _select(self, rows: Iterable[ReportedOutcome]) -> Iterator[pb.Outcome]:
        for row in rows:
            self.outcomes += 1
            if row.idempotency_key in self._withdrawn:
                continue
            try:
                outcome = pb.Outcome.FromString(row.message)
            except DecodeError:
                self._unreadable += 1
                continue
            if outcome.release_id == self.predictor.release_id:
                yield outcome
            elif outcome.release_id:
                self.other_releases += 1
            else:
                self.without_release += 1


class DriftWatch:
    """Background task that exports the drift of the served release as metrics."""

    def __init__(
        self,
        path: LogAddress,
        served: Served,
        metrics: Metrics,
        policy: DriftPolicy,
        *,
        every_s: float,
        has_offsets: bool = True,
    ) -> None:
        self._path, self._served, self._metrics = path, served, metrics
        self._policy, self._every_s, self._has_offsets = policy, every_s, has_offsets
        self.evaluated: ReleaseOutcomes | None = None
        self._position = self._withdrawn = 0
        self._shown: set[tuple[str, str]] = set()
        self._drifted: set[tuple[str, str]] = set()
        self._closed = threading.Event()

    async def run(self) -> None:
        """Check the log every ``every_s`` until closed."""
        logged = ""
        while not self._closed.is_set():
            try:
                await asyncio.to_thread(self.check)
                logged = ""
            except PresageError as error:
                if str(error) != logged:  # log a lasting error once
                    log(logging.WARNING, "drift not watched", reason=str(error))
                logged = str(error)
            except Exception:
                log(logging.ERROR, "defect", traceback=True, method="drift")
            await asyncio.sleep(self._every_s)

    def close(self) -> None:
        """Stop; a running check ends soon."""
        self._closed.set()

    def check(self) -> None:
        """Evaluate the rows since the last check; after a change of release, all of its rows."""
        predictor, last = self._served.released, last_position(self._path)
        evaluated = self.evaluated
        # Another release, or the log was replaced.
        if evaluated is None or evaluated.predictor is not predictor or last < self._position:
            evaluated = self.evaluated = ReleaseOutcomes(predictor, self._policy)
            self._position = self._withdrawn = 0
            self._drifted.clear()
        self._withdraw(evaluated)
        if last == self._position:
            return
        self._position = max(self._position, last - MAX_ROWS)
        # One query per page: an open reader would keep SQLite from truncating its write-ahead log.
        # For a database each page is a connection.
        count = _BATCH_ROWS if isinstance(self._path, Path) else _DATABASE_ROWS
        while rows := list(read_outcomes(self._path, after=self._position, limit=count)):
            self._position = rows[-1].position  # rows that fail are not tried again
            begin_s = time.thread_time()
            evaluated.add(rows)
            pause_s = min(_PAUSE_FACTOR * (time.thread_time() - begin_s), _MAX_PAUSE_S)
            if self._closed.wait(pause_s) or self._served.released is not predictor:
                return
        self._publish(evaluated)
        self._show(evaluated.drift.rows())

    def _withdraw(self, evaluated: ReleaseOutcomes) -> None:
        """Remove outcomes that were withdrawn since the last check from the offsets."""
        withdrawn = withdrawn_keys(self._path, after=self._withdrawn)
        for position, key in withdrawn:
            self._withdrawn = position
            evaluated.withdraw(key)
        if withdrawn:
            log(logging.INFO, "outcomes withdrawn", outcomes=len(withdrawn))
            self._publish(evaluated)

    def _publish(self, evaluated: ReleaseOutcomes) -> None:
        """Serve forecasts with the offsets of all outcomes so far."""
        self._metrics.offset_outcomes.set(len(evaluated.learner))
        if self._has_offsets and evaluated.learner.is_changed:
            self._served.correct(evaluated.predictor, evaluated.learner.offsets())

    def _show(self, rows: list[Row]) -> None:
        for row in rows:
            labels = row.quantity, row.slice_name
            self._metrics.drift.labels(*labels).set(int(row.drift != NO_DRIFT))
            self._metrics.drift_evidence.labels(*labels).set(row.evidence)
            if row.drift and labels not in self._drifted:
                self._drifted.add(labels)
                log(
                    logging.WARNING, "drift", quantity=row.quantity, slice=row.slice_name,
                    drift=row.drift, ratio=row.ratio, outcomes=row.runs,
                )  # fmt: skip
        current = {(row.quantity, row.slice_name) for row in rows}
        for labels in self._shown - current:  # labels of an earlier release
            self._metrics.drift.labels(*labels).set(0)
            self._metrics.drift_evidence.labels(*labels).set(0)
        self._shown |= current
