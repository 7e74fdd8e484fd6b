"""Arguments that commands on reported outcomes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from presage.system.files.log_address import LogAddress

Logs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[LOG...]",
        help="Outcome logs, also of running servers: files, folders of *.db files, or "
        "postgresql:// URLs.",
        show_default="the log of `presage serve`",
    ),
]


def chosen_logs(logs: Sequence[str] | None) -> list[LogAddress]:
    """Return the logs that the command line names, else those of ``presage serve``."""
    from presage.pipelines.stages.ingest import find_logs
    from presage.system.files.data_folder import data_folder
    from presage.system.files.log_address import log_address

    return find_logs([log_address(one) for one in logs or ()] or [data_folder() / "outcomes"])
