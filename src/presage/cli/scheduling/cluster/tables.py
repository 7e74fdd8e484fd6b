"""A live cluster's jobs and nodes, as tables for people."""

from __future__ import annotations

import time

from presage.schedulers.live.client.slo_text import slo_text
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.terminal import Table
from presage.system.units import quantity

MOST_DETAIL = 54  # letters a line: with a node's name of ten a terminal of 100 holds the history


def job_table(found: pb.ListResponse, *, why: bool = False) -> Table:
    """A row a job; perhaps with a column that says why it is in its phase."""
    table = Table(title=f"{len(found.jobs)} jobs under {found.policy}")
    names = ("job", "class", "phase", "node", "share", "done", "usage", "memory", "QoS")
    for column in (*names, "why") if why else names:
        right = column in ("share", "done", "usage", "memory")
        table.add_column(column, justify="right" if right else "left")
    for row in found.jobs:
        table.add_row(
            row.job.job_id,
            "latency-sensitive" if row.job.latency_sensitive else "best-effort",
            phase_of(row),
            row.node if row.allocations and row.phase not in (pb.WAITING, pb.REJECTED) else "",
            shares_of(row),
            done_of(row) if row.started_unix_s else "",
            f"{row.usage_milli / 10:.0f} %" if row.usage_milli else "",
            quantity(row.memory_bytes, "bytes") if row.memory_bytes else "",
            slo_text(row),
            *((row.why,) if why else ()),
        )
    return table


def node_table(found: pb.ListResponse) -> Table:
    """A row a device."""
    table = Table(title=f"{len(found.nodes)} nodes")
    for column in ("node", "device", "kind", "compute left", "memory left", "jobs", "why not"):
        right = column in ("device", "compute left", "memory left")
        table.add_column(column, justify="right" if right else "left")
    for node in found.nodes:
        for number, device in enumerate(node.devices):
            table.add_row(
                "" if number else node.name,
                str(number),
                device.kind,
                f"{device.left_compute_milli / 10:g} %",
                quantity(device.left_memory_bytes, "bytes"),
                ", ".join(device.job_ids),
                "" if number else node.why,
            )
    return table


def now_table(found: pb.Explanation) -> Table:
    """What a job at a node has, uses and has done; no row of one that is at none."""
    table = Table(title="now")
    names = ("share", "usage", "memory", "done", "since first start", "left", "promised", "QoS")
    for column in names:
        table.add_column(column, justify="left" if column == "QoS" else "right")
    row = found.status
    if not shares_of(row):
        return table
    table.add_row(
        shares_of(row),
        f"{row.usage_milli / 10:.0f} %",
        quantity(row.memory_bytes, "bytes"),
        done_of(row),
        seconds(row.elapsed_s),
        seconds(row.remaining_s) if row.remaining_s else "-",
        ", ".join(f"{seconds(told.promised_s)} ({told.kind})" for told in row.told),
        slo_text(row),
    )
    return table


def told_table(found: pb.Explanation) -> Table:
    """What was foretold, by kind of device."""
    table = Table(title="foretold")
    for column in ("kind", "compute", "memory at most", "run time", "at most", "known"):
        table.add_column(column, justify="left" if column in ("kind", "known") else "right")
    for told in found.status.told:
        table.add_row(
            told.kind,
            f"{told.compute_milli / 10:g} %",
            quantity(told.memory_bytes, "bytes"),
            seconds(told.runtime_s),
            seconds(told.promised_s),
            known(told),
        )
    return table


def candidate_table(found: pb.Explanation) -> Table:
    """Devices, and whether each would do now."""
    table = Table(title="devices now")
    names = (
        "node", "device", "kind", "left", "needs", "memory left", "needs ", "run time", "verdict",
    )  # fmt: skip
    for column in names:
        right = column not in ("node", "kind", "verdict")
        table.add_column(column, justify="right" if right else "left")
    for row in found.candidates:
        table.add_row(
            row.node,
            str(row.device),
            row.kind,
            f"{row.left_compute_milli / 10:g} %",
            f"{row.need_compute_milli / 10:g} %",
            quantity(row.left_memory_bytes, "bytes"),
            quantity(row.need_memory_bytes, "bytes"),
            seconds(row.runtime_s),
            row.verdict,
        )
    return table


def history_table(found: pb.Explanation) -> Table:
    """What happened to a job; what is said of it goes on in further lines."""
    table = Table(title="history")
    for column in ("at", "what", "node"):
        table.add_column(column)
    table.add_column("detail", max_width=MOST_DETAIL, overflow="fold")
    for event in found.history:
        at = time.strftime("%m-%d %H:%M:%S", time.localtime(event.at_unix_s))
        table.add_row(at, event.what.lower(), event.node, detail_of(event))
    return table


def detail_of(event: pb.Event) -> str:
    """What is said of an event, and the caller that caused it."""
    return "; ".join(filter(None, (event.detail, event.by and f"by {event.by}")))


def phase_of(row: pb.JobStatus) -> str:
    """In a word, and its place where it waits."""
    name = pb.Phase.Name(row.phase).lower()
    return f"{name}, no. {row.place_in_queue}" if row.place_in_queue else name


def shares_of(row: pb.JobStatus) -> str:
    """Of each of its devices, where it has any."""
    if row.phase not in (pb.PLACED, pb.RUNNING, pb.PAUSED, pb.LEAVING):
        return ""
    return ", ".join(f"{allocation.compute_milli / 10:g} %" for allocation in row.allocations)


def done_of(row: pb.JobStatus) -> str:
    """What of a job is done; "~40%" where that is what was foretold, and nobody said it."""
    return f"{'~' if row.done_guessed else ''}{row.done:.0%}"


def known(told: pb.Told) -> str:
    """How much a forecast is worth."""
    if not told.foretold:
        return "nothing: a whole device"
    return "in domain" if told.in_domain else "out of domain"


def seconds(value: float) -> str:
    """A time for people; a dash for one that nobody knows."""
    return "-" if value == float("inf") else quantity(value, "seconds")
