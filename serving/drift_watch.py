"""Watching for drift: the outcome log, followed beside the calls.

Reading the log, and not what this process was told, gives every worker the same answer, and the
same again after a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from google.protobuf.message import DecodeError

from presage.features.errors import PresageError
from presage.models.drift import NO_DRIFT, Drift, DriftPolicy, Row
from presage.serving.judged import Judge
from presage.serving.log import log
from presage.serving.metrics import Metrics
from presage.serving.outcome_log import ReportedOutcome, last_position, read_outcomes
from presage.serving.predictor import Predictor
from presage.serving.served import Served
from presage.serving.v1 import prediction_pb2 as pb

MOST_ROWS = 10_000  # of the log that a server begins with
_AT_ONCE = 16
_PAUSES = 9  # for each second of work: calls come first


class Answered:
    """Outcomes of one release among those of a log, and what they add up to.

    Attributes
    ----------
    outcomes : int
        That were read; ``of_others`` of them answer another release, ``of_none`` name none, and
        ``unreadable`` are no outcomes. The others are judged, unless their jobs failed.
    """

    def __init__(self, predictor: Predictor, policy: DriftPolicy) -> None:
        self.predictor = predictor
        self.drift = Drift(predictor.promises, policy)
        self.outcomes = self.of_others = self.of_none = self.unreadable = 0
        self._judge = Judge(predictor)

    @property
    def untold(self) -> int:
        """Outcomes beside others of jobs that were never reported alone before."""
        return self._judge.untold

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
                self.unreadable += 1
                continue
            if outcome.release_id == self.predictor.release_id:
                yield outcome
            elif outcome.release_id:
                self.of_others += 1
            else:
                self.of_none += 1


class DriftWatch:
    """Shows as metrics whether what is served still foretells what comes."""

    def __init__(
        self, path: Path, served: Served, metrics: Metrics, policy: DriftPolicy, *, every_s: float
    ) -> None:
        self._path, self._served, self._metrics = path, served, metrics
        self._policy, self._every_s = policy, every_s
        self._answered: Answered | None = None
        self._position = 0
        self._shown: set[tuple[str, str]] = set()
        self._drifted: set[tuple[str, str]] = set()
        self._closed = False

    async def run(self) -> None:
        """Look every ``every_s`` at what was reported since."""
        said = ""
        while not self._closed:
            try:
                await asyncio.to_thread(self.look)
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
        self._closed = True

    def look(self) -> None:
        """Judge what the log has since the last look, or for a new release all it has of that."""
        predictor = self._served.predictor
        answered = self._answered
        if answered is None or answered.predictor is not predictor:
            answered = self._answered = Answered(predictor, self._policy)
            self._position = max(0, last_position(self._path) - MOST_ROWS)
            self._drifted.clear()
        rows = read_outcomes(self._path, after=self._position)
        while some := list(islice(rows, _AT_ONCE)):
            begin_s = time.thread_time()
            answered.add(some)
            self._position = some[-1].position
            if self._closed or self._served.predictor is not predictor:
                return
            time.sleep(_PAUSES * (time.thread_time() - begin_s))
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
