"""Watching for drift: the outcome log, followed beside the calls.

Reading the log, and not what this process was told, gives every worker the same answer, and after a
restart the answer of the log's newest rows.
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
from presage.models.drift.drift_test import NO_DRIFT, Drift, DriftPolicy, Row
from presage.serving.outcomes.judged import Judge
from presage.serving.outcomes.outcome_log import ReportedOutcome, last_position, read_outcomes
from presage.serving.predictor.predictor import Predictor
from presage.serving.predictor.served_release import Served
from presage.serving.server.log import log
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.v1 import prediction_pb2 as pb

MOST_ROWS = 10_000  # that a server begins with, or is behind; those before are not judged here
_AT_ONCE = 16
# For each second of work, because calls come first.
_PAUSES, _LONGEST_PAUSE_S = 9, 1.0


class ReleaseOutcomes:
    """Outcomes of one release among those of a log, and what they add up to.

    Attributes
    ----------
    outcomes : int
        That were read; ``other_releases`` of them answer another release, ``without_release`` name none. The
        others are judged, unless their jobs failed.
    refused : int
        Outcomes that are none, or of no job that can be.
    """

    def __init__(self, predictor: Predictor, policy: DriftPolicy) -> None:
        self.predictor = predictor
        self.drift = Drift(predictor.promises, policy)
        self.outcomes = self.other_releases = self.without_release = self._unreadable = 0
        self._judge = Judge(predictor)

    @property
    def refused(self) -> int:  # noqa: D102 - above
        return self._unreadable + self._judge.refused

    @property
    def missing(self) -> int:
        """Outcomes beside others of jobs that were never reported alone before."""
        return self._judge.missing

    def add(self, rows: Iterable[ReportedOutcome]) -> None:
        """Take rows of a log, in the order in which they came."""
        for judged in self._judge.judged(self._own(rows)):
            self.drift.add(judged)

    def _own(self, rows: Iterable[ReportedOutcome]) -> Iterator[pb.Outcome]:
        for row in rows:
            self.outcomes += 1
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
    """Shows as metrics whether what is served still foretells what comes."""

    def __init__(
        self, path: Path, served: Served, metrics: Metrics, policy: DriftPolicy, *, every_s: float
    ) -> None:
        self._path, self._served, self._metrics = path, served, metrics
        self._policy, self._every_s = policy, every_s
        self._answered: ReleaseOutcomes | None = None
        self._position = 0
        self._shown: set[tuple[str, str]] = set()
        self._drifted: set[tuple[str, str]] = set()
        self._closed = threading.Event()

    async def run(self) -> None:
        """Look every ``every_s`` at what was reported since."""
        said = ""
        while not self._closed.is_set():
            try:
                await asyncio.to_thread(self.check)
                said = ""
            except PresageError as error:
                if str(error) != said:  # once, however long it lasts
                    log(logging.WARNING, "drift not watched", reason=str(error))
                said = str(error)
            except Exception:
                log(logging.ERROR, "defect", traceback=True, method="drift")
            await asyncio.sleep(self._every_s)

    def close(self) -> None:
        """Look no more; what is being looked at ends within moments."""
        self._closed.set()

    def check(self) -> None:
        """Judge what the log has since the last look, or for a new release all it has of that."""
        predictor, last = self._served.predictor, last_position(self._path)
        answered = self._answered
        # Another release, or another log in the place of the one before.
        if answered is None or answered.predictor is not predictor or last < self._position:
            answered = self._answered = ReleaseOutcomes(predictor, self._policy)
            self._position = 0
            self._drifted.clear()
        elif last == self._position:
            return
        self._position = max(self._position, last - MOST_ROWS)
        # Each page is read by itself: an open reader would keep SQLite from shortening its log.
        while rows := list(read_outcomes(self._path, after=self._position, most=_AT_ONCE)):
            self._position = rows[-1].position  # what cannot be judged is not tried again
            begin_s = time.thread_time()
            answered.add(rows)
            pause_s = min(_PAUSES * (time.thread_time() - begin_s), _LONGEST_PAUSE_S)
            if self._closed.wait(pause_s) or self._served.predictor is not predictor:
                return
        self._show(answered.drift.rows())

    def _show(self, rows: list[Row]) -> None:
        for row in rows:
            of = row.quantity, row.slice_name
            self._metrics.drift.labels(*of).set(int(row.drift != NO_DRIFT))
            self._metrics.drift_evidence.labels(*of).set(row.evidence)
            if row.drift and of not in self._drifted:
                self._drifted.add(of)
                log(
                    logging.WARNING, "drift", quantity=row.quantity, slice=row.slice_name,
                    drift=row.drift, ratio=row.ratio, outcomes=row.runs,
                )  # fmt: skip
        now = {(row.quantity, row.slice_name) for row in rows}
        for of in self._shown - now:  # of a release that was served before
            self._metrics.drift.labels(*of).set(0)
            self._metrics.drift_evidence.labels(*of).set(0)
        self._shown |= now
