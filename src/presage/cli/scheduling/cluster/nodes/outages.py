"""``presage cluster outages``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.cluster.options import ConnectionOptions
from presage.errors import ConfigError
from presage.system.text.terminal import Name, Table, print_table, say

if TYPE_CHECKING:
    from presage.schedulers.v1 import cluster_pb2 as pb


@command(
    examples="""
    presage cluster outages

    # Fit the hazard model to the history of the cluster
    presage cluster outages --output data/faults/fault_trace.json
    """
)
def outages(
    connection: ConnectionOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the outages of all nodes as a fault trace, which `dvc repro hazard` and "
            "`presage simulate --faults` read.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the outages of devices, or export those of nodes as a fault trace."""
    from presage.cli.output.json_output import message_content, print_json

    with connection.connected() as client:
        found = client.outages()
    if output is not None:
        _write(output, found)
    elif as_json:
        print_json(message_content(found))
    else:
        print_table(_table(found))


def _write(output: Path, found: pb.OutagesResponse) -> None:
    from presage.schedulers.live.client.outage_trace import fault_trace
    from presage.system.files.atomic_file import write_atomically

    trace = fault_trace(found)
    if not trace["events"]:
        raise ConfigError(f"--output {output}: no outage was recorded yet; nothing to export")
    text = json.dumps(trace, indent=1) + "\n"
    try:
        write_atomically(output, lambda partial: partial.write_text(text))
    except OSError as error:
        raise ConfigError(
            f"--output {output}: cannot be written ({error.strerror}); give another file"
        ) from None
    say(f"{output}: {trace['nodes']} nodes in {trace['days']:.3g} days")


def _table(found: pb.OutagesResponse) -> Table:
    """Return a row per device that had an outage, by the time of the last one."""
    from presage.schedulers.live.client.outage_trace import down_s
    from presage.system.text.units import quantity

    table = Table(title="outages", title_justify="left")
    for column in ("device", "node", "outages", "down", "last began", "state"):
        table.add_column(column, justify="right" if column in ("outages", "down") else "left")
    for row in sorted(found.devices, key=lambda row: -row.outages[-1].from_s):
        last = row.outages[-1]
        table.add_row(
            Name(row.device_id),
            Name(row.node),
            str(len(row.outages)),
            quantity(down_s(row, found.now_s), "seconds"),
            f"{quantity(found.now_s - last.from_s, 'seconds')} ago",
            "up" if last.HasField("until_s") else "down",
        )
    return table
