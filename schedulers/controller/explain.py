"""Why a job is where it is: a sentence, and what was left on each node when somebody asks."""

from __future__ import annotations

from presage.schedulers.controller.book import AT_NODE, LiveJob, Stage
from presage.schedulers.controller.core import Core
from presage.schedulers.controller.mirror import Mirror
from presage.schedulers.v1 import cluster_pb2 as pb

MOST_CANDIDATES = 32


def sentence_of(core: Core, job: LiveJob, place: int, now_s: float) -> str:
    """In one sentence."""
    submitted, where = job.submitted, f"on node {job.node}"
    name = "latency-sensitive" if submitted.job.latency_sensitive else "best-effort"
    if job.stage is Stage.WAITING:
        mirror = core.mirror(now_s)
        before = f"; it is no. {place} in the queue" if place else ""
        after = f" after {job.why}" if job.why and job.starts else ""
        if mirror is None:
            return f"it waits: no node is up{before}"
        if job.job_id in mirror.impossible:
            return f"it waits for other nodes: {mirror.impossible[job.job_id]}"
        return f"it waits{after}: no device has left what it needs, as a {name} job{before}"
    if job.stage in AT_NODE:
        doing = {
            Stage.PLACED: "it was given to",
            Stage.RUNNING: "it runs",
            Stage.LEAVING: "it is leaving",
        }[job.stage]
        share = ", ".join(f"{row[1] / 10:g} % of device {row[0]}" for row in job.grants)
        why = f": {job.why}" if job.why else ""
        return f"{doing} {where} with {share}, attempt {job.starts}{why}"
    return f"it is {job.stage}{f': {job.why}' if job.why else ''}"


def candidates_of(core: Core, job: LiveJob, now_s: float) -> list[pb.Candidate]:
    """Devices that are best for a job now, and why each will do or not."""
    mirror = core.mirror(now_s)
    if mirror is None:
        return []
    columns, room = mirror.cluster.columns, mirror.ledger.room
    wanted = job.submitted.job
    found = []
    for device in (-room.compute_milli).argsort(kind="stable").tolist()[:MOST_CANDIDATES]:
        kind = columns.kinds[columns.kind[device]]
        outlook = mirror.forecasts.outlook(wanted, kind)
        row = pb.Candidate(
            node=mirror.node_of(device),
            device=mirror.number_in_node(device),
            kind=kind,
            left_compute_milli=int(room.compute_milli[device]),
            left_memory_bytes=int(room.memory_bytes[device]),
            need_compute_milli=outlook.compute_milli,
            need_memory_bytes=outlook.memory_bytes,
            runtime_s=outlook.runtime_s,
        )
        row.verdict = _verdict(row, wanted.kinds)
        found.append(row)
    return found


def _verdict(row: pb.Candidate, kinds: tuple[str, ...]) -> str:
    if kinds and row.kind not in kinds:
        return "not of its kinds"
    if row.left_compute_milli < row.need_compute_milli:
        return "too little compute left"
    if row.left_memory_bytes < row.need_memory_bytes:
        return "too little memory left"
    return "fits"


def queue_places(mirror: Mirror | None) -> dict[str, int]:
    """Places in the queue, from 1, of jobs that wait."""
    if mirror is None:
        return {}
    return {job.job_id: place for place, job in enumerate(mirror.ledger.pending, 1)}
