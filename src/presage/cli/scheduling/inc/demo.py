"""``presage inc demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json, seconds_of
from presage.cli.scheduling.inc.picture_file import check_picture
from presage.system.text.terminal import Name, Table, box, print_table, say

if TYPE_CHECKING:
    from presage.collectives.demo.demo import DemoRow

_Seconds = Annotated[
    str, typer.Option(metavar="DURATION", help="Measured time of each of the two runs.")
]
_Gradients = Annotated[float, typer.Option(help="Gradients of an iteration, in MiB.")]
_Out = Annotated[Path, typer.Option(metavar="FILE", help="Picture: .html or .svg.")]


@command(
    examples="""
    sudo presage inc demo
    sudo presage inc demo --jobs 3 --seconds 30s --out shared.html
    """
)
def demo(
    jobs: Annotated[int, typer.Option(min=1, help="Number of jobs.")] = 2,
    ranks: Annotated[int, typer.Option(min=2, help="Number of ranks of each job.")] = 3,
    mbit: Annotated[float, typer.Option(help="Rate of each machine's link, in Mbit/s.")] = 50.0,
    gradient_mib: _Gradients = 2.0,
    seconds: _Seconds = "15s",
    out: _Out = Path("timeline.html"),
    as_json: Json = False,
) -> None:
    """Train jobs that share a switch on this machine, and draw which of them used it.

    Creates an emulated network (namespaces with links of a limited rate), a software switch, an
    arbiter and real DDP jobs. Trains them by ring only, then with it. Needs Linux and root.
    """
    from presage.cli.output.json_output import print_json
    from presage.collectives.demo.demo import DemoOptions, run_demo
    from presage.errors import ServiceError

    check_picture(out)
    options = DemoOptions(jobs, ranks, mbit, seconds_of(seconds, "--seconds"), gradient_mib, out)
    found = run_demo(options, lambda text: say(text, err=True))
    if as_json:
        print_json([row.to_json() for row in found.rows])
    else:
        print_table(_table(found.rows))
    if found.timeline_problem:
        raise ServiceError(f"the time line could not be drawn: {found.timeline_problem}")
    if not as_json:
        say(f"time line: {out}")


def _table(rows: list[DemoRow]) -> Table:
    table = Table(box=box.SIMPLE)
    for column in ("job", "ring only", "with arbiter", "speedup", "on the switch", "ranks"):
        table.add_column(column, justify="left" if column in ("job", "ranks") else "right")
    for row in rows:
        table.add_row(
            Name(row.job),
            f"{1000 * row.ring_s:.0f} ms",
            f"{1000 * row.shared_s:.0f} ms",
            f"{row.speedup:.2f}",
            f"{row.inc_share:.0%}",
            "bitwise equal" if row.is_equal else "DIFFERENT PARAMETERS",
        )
    return table
