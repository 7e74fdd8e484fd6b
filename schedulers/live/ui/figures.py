"""Numbers, times and states as an operator reads them."""

from __future__ import annotations

import math
import time
from urllib.parse import quote, urlencode

from presage.schedulers.report.figures import span
from presage.schedulers.v1 import cluster_pb2 as pb

_MINUTES_S = 600  # from here on seconds are not told
ON_NODE = frozenset({pb.PLACED, pb.RUNNING, pb.PAUSED, pb.LEAVING})
# From the state that an operator is to see first to the one that needs nobody.
STATES = ("late", "paused", "leaving", "placed", "running")


def how_long(seconds: float) -> str:
    """A duration, no finer than one looks; a dash for one that nobody knows."""
    if not math.isfinite(seconds):
        return "-"
    if seconds >= _MINUTES_S:
        seconds = 60 * round(seconds / 60)
    return span(round(seconds) if seconds >= 1 else 0.0 if seconds <= 0 else round(seconds, 1))


def size(value: float) -> str:
    """Bytes in few letters, with their unit; what is less than a MiB counts as one."""
    if value < 2**30:
        return f"{value / 2**20:,.0f} MiB" if value >= 2**20 or not value else "1 MiB"
    large, unit = (value / 2**30, "GiB") if value < 2**40 else (value / 2**40, "TiB")
    return f"{f'{large:,.1f}'.removesuffix('.0')} {unit}"


def percent(milli: float) -> str:
    """Thousandths as a percentage."""
    return f"{milli / 10:.0f} %"


def done_of(row: pb.JobStatus) -> str:
    """What of a job is done; "~40 %" where that is what was foretold, and nobody said it."""
    if not row.done:
        return "-"
    return f"{'~' if row.done_guessed else ''}{percent(1000 * row.done)}"


def share(milli: float) -> str:
    """A share that was given, which is exact."""
    return f"{milli / 10:g} %"


def clock(unix_s: float, *, day: bool = False) -> str:
    """A time of this machine's day; a dash for one that is not yet."""
    if not unix_s:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S", time.localtime(unix_s))


def state_of(row: pb.JobStatus) -> str:
    """What an operator calls it: its phase, or "late" for one that breaks its promise."""
    if row.late and row.phase in (pb.RUNNING, pb.PAUSED):
        return "late"
    return str(pb.Phase.Name(row.phase)).lower()


def told_here(row: pb.JobStatus, kind: str) -> pb.Told | None:
    """What is foretold of a job on a kind of device; of its only kind where that is not known."""
    for told in row.told:
        if told.kind == kind or (not kind and len(row.told) == 1):
            return told
    return None


def known(told: pb.Told) -> str:
    """How much a forecast is worth."""
    if not told.foretold:
        return "nothing is known: a whole device"
    return "in domain" if told.in_domain else "out of domain"


query = urlencode  # what stands behind the ? of an address


def job_url(job_id: str) -> str:
    """Of a job's page. Browsers take a name of dots for a folder, so those are no path."""
    if job_id in (".", ".."):
        return f"/jobs/?name={quote(job_id)}"
    return f"/jobs/{quote(job_id, safe='')}"
