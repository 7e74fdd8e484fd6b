"""``presage inc status``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.inc.options import ArbiterConnection
from presage.system.text.terminal import Name, Table, box, print_table, say

if TYPE_CHECKING:
    from presage.collectives.v1 import arbiter_pb2 as pb


@command(
    examples="""
    presage inc status
    presage inc status --json
    """
)
def status(connection: ArbiterConnection, as_json: Json = False) -> None:
    """Show switches and jobs, and how many AllReduces ran on the switches."""
    from presage.cli.output.json_output import message_content, print_json

    with connection.connected() as client:
        found = client.status()
    if as_json:
        print_json(message_content(found))
        return
    say(f"agreement {found.agreement}, epoch {found.epoch}, change: {found.stage}")
    print_table(_switch_table(found))
    print_table(_job_table(found))
    for job in found.jobs:
        for row in job.reasons:
            say(f"{job.job}: {row.count} of {job.window} decisions: {row.text}")
    for notice in found.notices:
        say(f"notice: {notice}")


def _switch_table(found: pb.StatusResponse) -> Table:
    table = Table(box=box.SIMPLE, title="switches", title_justify="left")
    for column in ("switch", "address", "slots", "problem"):
        table.add_column(column, justify="right" if column == "slots" else "left")
    for one in found.switches:
        table.add_row(Name(one.name), f"{one.host}:{one.port}", str(one.slots), one.problem)
    return table


def _job_table(found: pb.StatusResponse) -> Table:
    table = Table(box=box.SIMPLE, title="jobs", title_justify="left")
    for column in ("job", "ranks", "switch", "ring", "refused", "saved", "state"):
        right = column not in ("job", "state")
        table.add_column(column, justify="right" if right else "left")
    for job in found.jobs:
        counts = job.counts
        total = counts.inc + counts.ring + counts.refused
        table.add_row(
            Name(job.job),
            f"{job.connected} of {job.ranks}",
            f"{counts.inc / total:.0%}" if total else "-",
            str(counts.ring),
            str(counts.refused),
            f"{1000 * job.mean_saved_s:.3g} ms" if counts.inc else "-",
            job.state,
        )
    return table
