"""``presage inc timeline``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import seconds_of
from presage.cli.scheduling.inc.options import ArbiterConnection
from presage.cli.scheduling.inc.picture_file import check_picture, write_picture
from presage.system.text.terminal import say


@command(
    examples="""
    presage inc timeline --out timeline.html
    presage inc timeline --last 2s --out timeline.svg
    """
)
def timeline(
    connection: ArbiterConnection,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write: .html or .svg.")] = Path(
        "timeline.html"
    ),
    last: Annotated[
        str, typer.Option(metavar="DURATION", help="Time before now to draw, such as 5s.")
    ] = "10s",
) -> None:
    """Draw which AllReduces used the switches, when and why."""
    from presage.collectives.arbiter.timeline.picture import picture

    last_s = seconds_of(last, "--last")
    check_picture(out)
    with connection.connected() as client:
        found = client.timeline(last_s)
    write_picture(out, picture(found, is_page=out.suffix == ".html"))
    say(f"{out}: {len(found.rows)} AllReduces")
