"""Options that select what ``presage cluster ps`` lists, and its format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

_SELECTION = "Selection"


class Output(StrEnum):
    """Format of a list."""

    WIDE = "wide"
    JSON = "json"
    NAME = "name"


OutputOption = Annotated[
    Output | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT",
        show_default="a table",
        help="wide: a table with all columns; json: as --json; name: names only, one per line.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions:
    """Which jobs are listed."""

    everything: Annotated[
        bool,
        typer.Option("--all", help="Include jobs that are over.", rich_help_panel=_SELECTION),
    ] = False
    user: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            show_default="all users",
            help="Only jobs of this user.",
            rich_help_panel=_SELECTION,
        ),
    ] = ""
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            show_default="all states",
            help="Only jobs in this state, such as running, also if they are over. Repeat for "
            "several.",
            rich_help_panel=_SELECTION,
        ),
    ] = None
    node: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            show_default="all nodes",
            help="Only jobs on this node; with --nodes, only this node.",
            rich_help_panel=_SELECTION,
        ),
    ] = ""

    @property
    def ended(self) -> bool:
        """Whether jobs that are over may be listed."""
        return self.everything or bool(self.states)
