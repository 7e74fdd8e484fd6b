"""What a rank reports to the arbiter: its rhythm, and the AllReduces that have ended."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from presage.collectives.core.demand import Call
from presage.collectives.core.view import Reason
from presage.collectives.v1 import arbiter_pb2 as pb

_MOST_DECISIONS = 512  # of a report, and that wait for one
_log = logging.getLogger(__name__)


class PhasesLike(Protocol):
    """Rhythm of a job on the clock of the rank, as ``collectives.phases`` estimates it."""

    @property
    def period_s(self) -> float: ...  # noqa: D102
    @property
    def calls(self) -> Sequence[Call]: ...  # noqa: D102
    @property
    def anchor_number(self) -> int: ...  # noqa: D102
    @property
    def anchor_s(self) -> float: ...  # noqa: D102
    @property
    def margin_s(self) -> float: ...  # noqa: D102


class EndedAllReduce(NamedTuple):
    """AllReduce that has ended at this rank.

    ``start_s`` is by ``time.monotonic()``; ``way`` is one of ``pb.INC``, ``pb.RING`` and
    ``pb.REFUSED``.
    """

    number: int
    start_s: float
    duration_s: float
    size_bytes: int
    reason: Reason
    way: int


class _Report(NamedTuple):
    phases: PhasesLike | None
    started: int
    now_s: float
    monotonic_s: float


class RankReports:
    """Newest report of a rank, and AllReduces that were not reported yet; memory is bounded."""

    def __init__(self) -> None:
        self._ended: deque[EndedAllReduce] = deque(maxlen=_MOST_DECISIONS)
        self._counts = [0, 0, 0]  # by way
        self._report: _Report | None = None

    def replace(self, phases: PhasesLike | None, started: int, now_s: float) -> None:
        """Replace the next report; see ``RankConnection.report``."""
        self._report = _Report(phases, started, now_s, time.monotonic())

    def record(self, ended: EndedAllReduce) -> None:
        """Record an AllReduce that has ended."""
        self._counts[ended.way] += 1
        self._ended.append(ended)

    def take(self) -> pb.Report | None:
        """Return what is to be reported now; None if there is nothing."""
        report, self._report = self._report, None
        now_s = time.monotonic()
        decisions: list[pb.Decision] = []
        while self._ended and len(decisions) < _MOST_DECISIONS:
            one = self._ended.popleft()
            decisions.append(
                pb.Decision(
                    number=one.number,
                    age_s=now_s - one.start_s,
                    duration_s=one.duration_s,
                    size_bytes=one.size_bytes,
                    reason=one.reason,
                    way=pb.Way.Name(one.way),
                )
            )
        if report is None:
            if not decisions:
                return None
            return pb.Report(counts=self._wire_counts(), decisions=decisions)
        found = pb.Report(started=report.started, counts=self._wire_counts(), decisions=decisions)
        if report.phases is not None:
            try:
                found.phases.CopyFrom(_wire_phases(report, now_s))
            except (ValueError, TypeError) as error:  # such as a negative size
                _log.warning("arrivals are not reported: %s", error)
        return found

    def _wire_counts(self) -> pb.Counts:
        counts = self._counts
        return pb.Counts(
            inc=counts[pb.INC],
            ring=counts[pb.RING],
            refused=counts[pb.REFUSED],
        )


def _wire_phases(report: _Report, now_s: float) -> pb.Phases:
    phases = report.phases
    assert phases is not None
    return pb.Phases(
        period_s=phases.period_s,
        calls=[
            pb.Call(offset_s=c.offset_s, size_bytes=c.size_bytes, shift_s=c.shift_s)
            for c in phases.calls
        ],
        anchor_number=phases.anchor_number,
        anchor_age_s=report.now_s - phases.anchor_s + (now_s - report.monotonic_s),
        margin_s=phases.margin_s,
    )
