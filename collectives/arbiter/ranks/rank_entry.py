"""One rank of a job, as it reports itself; every value is checked here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from presage.collectives.arbiter.wire import MAX_EPOCH
from presage.collectives.core.demand import Call
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.errors import InvalidRequestError

MAX_CALLS = 4096
MAX_SIZE_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Reported phases of a rank, on the clock of the arbiter; see ``JobDemand``."""

    period_s: float
    calls: tuple[Call, ...]
    anchor_number: int
    anchor_s: float
    margin_s: float


@dataclass(slots=True)
class RankEntry:
    """One rank of a job.

    Attributes
    ----------
    instance : str
        Random text of its process.
    node : str
        Its node; "" if unknown.
    started : int
        Number of the AllReduce that it started last; -1 for none.
    rhythm : Rhythm or None
        Its newest report; None if it cannot predict arrivals.
    problem : str
        Why the report has no rhythm; "" if it has one.
    counts : pb.Counts
        AllReduces by the way they took.
    gone_s : float or None
        Time at which its stream ended; None while it is open.
    has_left : bool
        Whether it has ended its stream by itself.
    """

    instance: str
    node: str
    started: int = -1
    rhythm: Rhythm | None = None
    problem: str = "no report yet"
    counts: pb.Counts = field(default_factory=pb.Counts)
    gone_s: float | None = None
    has_left: bool = False


def read_report(entry: RankEntry, report: pb.Report, now_s: float) -> None:
    """Update a rank by its report: a rhythm that cannot be is none, with the reason.

    Raises
    ------
    InvalidRequestError
        ``started`` is out of range.
    """
    if report.HasField("counts"):
        entry.counts = report.counts
    if not report.HasField("started"):
        return
    if not -1 <= report.started <= MAX_EPOCH:
        raise InvalidRequestError(f"started={report.started} is out of range")
    entry.started = max(entry.started, report.started)
    entry.rhythm = None
    entry.problem = "its arrivals cannot be predicted"
    if report.HasField("phases"):
        entry.problem = _problem(report.phases)
        if not entry.problem:
            entry.rhythm = _rhythm(report.phases, now_s)


def _problem(phases: pb.Phases) -> str:
    """Return why phases are no rhythm; "" if they are one."""
    if not (math.isfinite(phases.period_s) and 0 < phases.period_s <= 86_400):
        return f"period of {phases.period_s:g} s"
    if not 0 < len(phases.calls) <= MAX_CALLS:
        return f"{len(phases.calls)} AllReduces in an iteration"
    if any(call.size_bytes > MAX_SIZE_BYTES for call in phases.calls):
        return "an AllReduce with an impossible size"
    offsets = [call.offset_s for call in phases.calls]
    shifts_s = [call.shift_s for call in phases.calls]  # 0 where absent
    times = [phases.anchor_age_s, phases.margin_s, *offsets, *shifts_s]
    if not all(math.isfinite(time) and abs(time) <= 1e9 for time in times):
        return "a time that is not finite"
    return _order_problem(phases, offsets)


def _order_problem(phases: pb.Phases, offsets: list[float]) -> str:
    if phases.margin_s < 0 or phases.anchor_number > MAX_EPOCH:
        return "a negative margin, or a number that is out of range"
    if any(call.shift_s < 0 for call in phases.calls):
        return "an AllReduce on the switch that delays the next one"
    if offsets != sorted(offsets) or offsets[-1] - offsets[0] > phases.period_s:
        return "offsets that do not increase within the period"
    return ""


def _rhythm(phases: pb.Phases, now_s: float) -> Rhythm:
    return Rhythm(
        phases.period_s,
        tuple(_call(call) for call in phases.calls),
        phases.anchor_number,
        now_s - phases.anchor_age_s,
        phases.margin_s,
    )


def _call(call: pb.Call) -> Call:
    shift_s = call.shift_s if call.HasField("shift_s") else None
    return Call(call.offset_s, call.size_bytes, shift_s)
