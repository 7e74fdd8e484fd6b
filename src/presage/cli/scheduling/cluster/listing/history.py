"""``presage cluster history``."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.cluster.options import ConnectionOptions
from presage.system.text.terminal import Table, print_table

if TYPE_CHECKING:
    from presage.schedulers.v1 import cluster_pb2 as pb


class Span(StrEnum):
    """Time that a history covers."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"


_SECONDS = {Span.HOUR: 3_600, Span.DAY: 86_400, Span.WEEK: 604_800}
_STEPS_S = {Span.HOUR: 300, Span.DAY: 3_600, Span.WEEK: 43_200}  # a table of a screen


@command(
    examples="""
    presage cluster history
    presage cluster history --last week

    # All samples of the last day, one a minute
    presage cluster history --last day --step-s 60 --json
    """
)
def history(
    connection: ConnectionOptions,
    last: Annotated[Span, typer.Option(help="Time to show.")] = Span.HOUR,
    step_s: Annotated[
        int | None,
        typer.Option(
            min=60,
            metavar="SECONDS",
            show_default="300, an hour or 12 hours",
            help="Time of a row: a multiple of 60.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the use of devices, the queue, SLO violations and forecast errors over time.

    Numbers are means over samples of each minute, and the queue's greatest length. The error
    is the mean difference between predicted and measured run times of the jobs that finished,
    relative to the measured ones; only administrators see it.
    """
    from presage.cli.output.json_output import message_content, print_json

    with connection.connected() as client:
        now_s = time.time()
        found = client.history(now_s - _SECONDS[last], now_s, step_s=step_s or _STEPS_S[last])
    if as_json:
        print_json(message_content(found))
    else:
        print_table(_table(found))


def _table(found: pb.HistoryResponse) -> Table:
    """Return a row per step."""
    table = Table(title="history", title_justify="left")
    has_readings = any(map(_has_readings, found.points))
    for column in (
        "time", "devices", "in use", "allocated", "used", "queue", "SLO violated", "finished",
        "failed", "error", *(("hottest", "power") if has_readings else ()),
    ):  # fmt: skip
        table.add_column(column, justify="left" if column == "time" else "right")
    for point in found.points:
        errors = point.forecast_errors
        table.add_row(
            time.strftime("%Y-%m-%d %H:%M", time.localtime(point.time_unix_s)),
            f"{point.devices.greatest:.0f}",
            f"{point.devices_in_use.mean:.1f}",
            f"{point.allocated_devices.mean:.1f}",
            f"{point.used_devices.mean:.1f}",
            f"{point.waiting_jobs.greatest:.0f}",
            f"{point.slo_violated_jobs.greatest:.0f}",
            str(point.finished_jobs),
            str(point.failed_jobs),
            f"{errors.mean:.0%}" if errors.jobs else "",
            *(_readings(point) if has_readings else ()),
        )
    return table


def _has_readings(point: pb.HistoryPoint) -> bool:
    return point.HasField("hottest_c") or point.HasField("power_w")


def _readings(point: pb.HistoryPoint) -> tuple[str, str]:
    """Return the greatest temperature and the mean power of a step."""
    return (
        f"{point.hottest_c.greatest:.0f} °C" if point.HasField("hottest_c") else "-",
        f"{point.power_w.mean:,.0f} W" if point.HasField("power_w") else "-",
    )
