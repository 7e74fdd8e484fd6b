"""How a job keeps what it was promised, in a word for people."""

from __future__ import annotations

import math

from presage.schedulers.v1 import cluster_pb2 as pb

_BEGUN = (pb.RUNNING, pb.PAUSED, pb.LEAVING, pb.FINISHED)


def promise_of(row: pb.JobStatus, kind: str = "") -> str:
    """Of a latency-sensitive job that runs or is done, on a kind of device where that is known.

    "" of any other.
    """
    if not row.job.latency_sensitive or row.phase not in _BEGUN or not row.started_unix_s:
        return ""
    if row.late:
        return "late"
    here = [told for told in row.told if told.kind == kind] or row.told
    promised = any(math.isfinite(told.promised_s) for told in here)
    return "in time" if promised else "nothing promised"
