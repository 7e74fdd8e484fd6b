"""Tables of a live cluster's jobs and nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator

from presage.schedulers.live.client.elastic_text import (
    is_elastic,
    nodes_text,
    size_text,
    usage_per_device,
)
from presage.schedulers.live.client.event_text import event_name
from presage.schedulers.live.client.slo_text import slo_text
from presage.schedulers.live.protocol.job_states import state_name
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.terminal import Name, Table
from presage.system.text.units import quantity

MOST_DETAIL = 54  # columns: with a node name of ten columns the history fits in 100 columns


_UNPLACED = (pb.WAITING, pb.REJECTED)


def compact_table(title: str) -> Table:
    """Return a table without lines, for many columns."""
    return Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))


def explanation_tables(found: pb.Explanation) -> Iterator[Table]:
    """Yield the tables of an explanation that have rows."""
    for make in (
        now_table, worker_table, size_table, forecast_table, candidate_table, history_table,
    ):  # fmt: skip
        table = make(found)
        if table.row_count:
            yield table


def now_table(found: pb.Explanation) -> Table:
    """Return the share, usage and progress of a job; without rows if the job has no node."""
    table = Table(title="now")
    row = found.status
    size = (size_text(row),) if is_elastic(row.job) else ()
    names = ("share", "usage", "memory", "done", "elapsed", "remaining", "SLO", "QoS")
    for column in (*(("devices",) if size else ()), *names):
        table.add_column(column, justify="left" if column == "QoS" else "right")
    if not shares_of(row):
        return table
    table.add_row(
        *size,
        shares_of(row),
        usage_of(row),
        quantity(row.memory_bytes, "bytes"),
        done_of(row),
        seconds(row.elapsed_s),
        seconds(row.remaining_s) if row.remaining_s else "-",
        ", ".join(f"{seconds(one.slo_s)} ({one.kind})" for one in row.predictions),
        slo_text(row),
    )
    return table


def worker_table(found: pb.Explanation) -> Table:
    """Return the workers of an elastic job."""
    table = Table(title="workers")
    for column in ("worker", "node", "device", "share", "memory", "state"):
        right = column in ("device", "share", "memory")
        table.add_column(column, justify="right" if right else "left")
    for member in found.status.members:
        table.add_row(
            member.name,
            Name(member.node),
            str(member.allocation.device),
            f"{member.allocation.compute_milli / 10:g} %",
            quantity(member.allocation.memory_bytes, "bytes"),
            member.state,
        )
    return table


def size_table(found: pb.Explanation) -> Table:
    """Return the changes of the number of devices of an elastic job; long reasons are wrapped."""
    table = Table(title="devices over time")
    table.add_column("time")
    table.add_column("devices", justify="right")
    table.add_column("reason", max_width=MOST_DETAIL, overflow="fold")
    for change in found.status.sizes:
        table.add_row(time_of(change.time_unix_s), str(change.gpus), change.reason)
    return table


def forecast_table(found: pb.Explanation) -> Table:
    """Return the forecasts of a job, by kind of device."""
    table = Table(title="forecasts")
    for column in ("kind", "compute", "memory bound", "run time", "SLO", "forecast"):
        table.add_column(column, justify="left" if column in ("kind", "forecast") else "right")
    for one in found.status.predictions:
        table.add_row(
            one.kind,
            f"{one.compute_milli / 10:g} %",
            quantity(one.memory_bytes, "bytes"),
            seconds(one.runtime_s),
            seconds(one.slo_s),
            domain_of(one),
        )
    return table


def candidate_table(found: pb.Explanation) -> Table:
    """Return the devices, and whether the job could start on each now."""
    table = Table(title="devices now")
    names = (
        "node", "device", "kind", "free", "needed", "free memory", "needed memory", "run time",
        "verdict",
    )  # fmt: skip
    for column in names:
        right = column not in ("node", "kind", "verdict")
        table.add_column(column, justify="right" if right else "left")
    for row in found.candidates:
        table.add_row(
            Name(row.node),
            str(row.device),
            row.kind,
            f"{row.free_compute_milli / 10:g} %",
            f"{row.required_compute_milli / 10:g} %",
            quantity(row.free_memory_bytes, "bytes"),
            quantity(row.required_memory_bytes, "bytes"),
            seconds(row.runtime_s),
            row.verdict,
        )
    return table


def history_table(found: pb.Explanation) -> Table:
    """Return the events of a job; long details are wrapped."""
    table = Table(title="history")
    for column in ("time", "event", "node"):
        table.add_column(column)
    table.add_column("detail", max_width=MOST_DETAIL, overflow="fold")
    for event in found.history:
        is_size = bool(found.status.sizes) and event.type in ("Placed", "Resized")
        detail = detail_of(_without_reason(event) if is_size else event)
        at = time_of(event.time_unix_s)
        table.add_row(at, event_name(event.type), Name(event.node), detail)
    return table


def _without_reason(event: pb.Event) -> pb.Event:
    """Return a change of size with its nodes only: the table of sizes has the reason."""
    return pb.Event(details=event.details.partition("; ")[0], principal=event.principal)


def time_of(unix_s: float) -> str:
    """Return a time in this machine's time zone, without the year."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(unix_s))


def detail_of(event: pb.Event) -> str:
    """Return the detail of an event, and the client that caused it."""
    return "; ".join(filter(None, (event.details, event.principal and f"by {event.principal}")))


def phase_of(row: pb.JobStatus) -> str:
    """Return the state of a job, with its place in the queue."""
    name = state_name(row)
    return f"{name}, no. {row.queue_position}" if row.queue_position else name


def nodes_of(row: pb.JobStatus) -> str:
    """Return the node of a job, or the nodes of its workers; "" if it has no devices."""
    has_devices = bool(row.allocations or row.members) and row.phase not in _UNPLACED
    return nodes_text(row) if has_devices else ""


def shares_of(row: pb.JobStatus) -> str:
    """Return the share of each device allocated to a job; of workers, the different ones."""
    if row.phase not in (pb.PLACED, pb.RUNNING, pb.PAUSED, pb.LEAVING):
        return ""
    shares = [f"{one.compute_milli / 10:g} %" for one in row.allocations]
    of_workers = {f"{one.allocation.compute_milli / 10:g} %" for one in row.members}
    return ", ".join(shares or sorted(of_workers))


def usage_of(row: pb.JobStatus) -> str:
    """Return the mean usage of a job's devices."""
    return f"{usage_per_device(row) / 10:.0f} %"


def done_of(row: pb.JobStatus) -> str:
    """Return the progress of a job; "~40%" is an estimate from its forecast."""
    return f"{'~' if row.done_estimated else ''}{row.done:.0%}"


def domain_of(forecast: pb.Prediction) -> str:
    """Return whether there is a forecast, and whether it is in the release's domain."""
    if not forecast.is_predicted:
        return "none: exclusive device"
    return "in domain" if forecast.in_domain else "out of domain"


def seconds(value: float) -> str:
    """Return a time in a readable unit; a dash if it is unknown."""
    return "-" if value == float("inf") else quantity(value, "seconds")
