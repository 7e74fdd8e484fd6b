"""Arguments that commands on reported outcomes share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Logs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[LOG...]",
        help="Outcome logs, also of running servers, or folders of *.db files.",
        show_default="the log of `presage serve`",
    ),
]
