"""Table of the running jobs: progress, use of devices and slowdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from presage.cli.scheduling.cluster.listing.job_table import UNKNOWN, left_text
from presage.cli.scheduling.cluster.tables import (
    compact_table,
    done_of,
    nodes_of,
    shares_of,
    usage_of,
)
from presage.schedulers.live.protocol.job_states import state_name
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.terminal import Name, Table
from presage.system.text.units import counted, quantity

RUNNING = (pb.PLACED, pb.RUNNING, pb.PAUSED, pb.LEAVING)
_TEXTS = ("job", "user", "state", "node")
_MIN_DONE = 0.01  # progress before which a slowdown is mostly start-up time


def top_table(found: pb.ListResponse) -> Table:
    """Return a row per running job, the most used first."""
    rows = [row for row in found.jobs if row.phase in RUNNING]
    waiting = sum(row.phase == pb.WAITING for row in found.jobs) + found.remaining_job_count
    table = compact_table(f"{counted(len(rows), 'job')} on nodes, {waiting:,} waiting")
    for column in (*_TEXTS, "share", "usage", "memory", "done", "left", "slowdown"):
        is_text = column in _TEXTS
        table.add_column(
            column, justify="left" if is_text else "right", no_wrap=column not in ("job", "user")
        )
    kinds = {node.name: [device.kind for device in node.devices] for node in found.nodes}
    for row in sorted(rows, key=lambda row: -row.usage_milli):
        slowdown = slowdown_of(row, kinds)
        table.add_row(
            Name(row.job.job_id),
            Name(row.job.user or UNKNOWN),
            state_name(row),
            Name(nodes_of(row)),
            shares_of(row),
            usage_of(row) if row.usage_milli else UNKNOWN,
            quantity(row.memory_bytes, "bytes") if row.memory_bytes else UNKNOWN,
            done_of(row) if row.started_unix_s else "",
            left_text(row),
            UNKNOWN if slowdown is None else f"{slowdown:.2f} x",
        )
    return table


def slowdown_of(row: pb.JobStatus, kinds: Mapping[str, Sequence[str]]) -> float | None:
    """Return how much slower a job trains than predicted on an exclusive device of its kind.

    None without a forecast or without progress that the job reports. ``kinds`` are those of the
    devices of each node.
    """
    here = kinds.get(row.node, ())
    used = {here[one.device] for one in row.allocations if one.device < len(here)}
    predicted = [one for one in row.predictions if one.is_predicted and one.kind in used]
    is_measured = not row.done_estimated and _MIN_DONE <= row.done < 1
    if len(predicted) != 1 or not is_measured or not 0 < row.remaining_s < math.inf:
        return None
    step_s = predicted[0].runtime_s - predicted[0].setup_s  # of all steps
    return row.remaining_s / (1 - row.done) / step_s if 0 < step_s < math.inf else None
