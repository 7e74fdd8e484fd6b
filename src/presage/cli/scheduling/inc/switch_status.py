"""``presage inc switch-status``."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.inc.switch import TOKEN_VARIABLE
from presage.system.text.address import check_address
from presage.system.text.terminal import Name, Table, box, print_table, say


@command(
    examples="""
    presage inc switch-status
    presage inc switch-status 10.0.0.1:7200 --json
    """
)
def switch_status(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Address of the switch.")
    ] = "127.0.0.1:7200",
    as_json: Json = False,
) -> None:
    """Show the slots and jobs of a software switch, and which jobs it admits.

    The token of the switch is read from PRESAGE_SWITCH_TOKEN.
    """
    import json

    from presage.cli.output.json_output import print_json
    from presage.collectives.switch.client import statistics

    check_address(address, "HOST:PORT", f"{address!r} is not HOST:PORT; write 127.0.0.1:7200")
    host, _, port = address.rpartition(":")
    token = os.environ.get(TOKEN_VARIABLE, "")
    found = json.loads(statistics(host.strip("[]"), int(port), token))
    if as_json:
        print_json(found)
        return
    say(_sentence(found))
    print_table(_job_table(found))


def _sentence(found: dict[str, Any]) -> str:
    refused = {code: count for code, count in found["refusals"].items() if count}
    parts = [
        f"{found['implementation']} aggregator: {found['slots_in_use']} of {found['slots']} slots "
        f"in use, {found['completed']} AllReduces completed"
    ]
    if refused:
        parts.append("refused: " + ", ".join(f"{n} {code}" for code, n in refused.items()))
    if found["controlled"]:
        state = f"admission {found['admission']}" if found["admission"] else "no admission yet"
        parts.append(f"controlled, {state}: {len(found['floors'])} jobs")
    return "; ".join(parts)


def _job_table(found: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE)
    for column in ("job", "ranks", "epoch", "last number", "slot", "admitted from epoch"):
        table.add_column(column, justify="left" if column == "job" else "right")
    for job in found["jobs"]:
        floor = found["floors"].get(job["name"])
        uncontrolled = "-" if found["controlled"] else "all"
        table.add_row(
            Name(job["name"]),
            f"{job['registered']} of {job['ranks']}",
            str(job["epoch"]),
            str(max(job["settled"], job["running"])),
            "yes" if job["has_slot"] else "no",
            uncontrolled if floor is None else str(floor),
        )
    return table
