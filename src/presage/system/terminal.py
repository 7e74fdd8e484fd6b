"""The terminal: the one module through which tables and sentences are printed.

Most of what is printed holds names from users, files or the network. The console here escapes
every ``str`` that it is given, in a table's cell as in a sentence, and knows no markup: what is to
be coloured is a :func:`styled` text. Nothing else imports ``rich`` (tests/test_terminal.py), so a
name cannot reach a terminal by another way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console as _Console
from rich.console import JustifyMethod, OverflowMethod
from rich.measure import Measurement
from rich.style import Style
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from presage.system.printable import printable

__all__ = ["Console", "Table", "Tree", "box", "say", "show_whole", "styled"]

MOST_WIDTH = 400  # columns of a table that is wider than the terminal


class Console(_Console):
    """Rich console that prints every ``str`` as foreign text: escaped, without markup."""

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        emoji: bool | None = None,
        markup: bool | None = None,
        highlight: bool | None = None,
        highlighter: Callable[[str | Text], Text] | None = None,
    ) -> Text:
        """Return the text of a ``str``; rich calls this for all of them, cells and titles too."""
        del emoji, markup
        return super().render_str(
            printable(text),
            style=style,
            justify=justify,
            overflow=overflow,
            emoji=False,
            markup=False,
            highlight=highlight,
            highlighter=highlighter,
        )


def styled(text: str, style: str) -> Text:
    """Return a text in a colour or weight, as ``"red"`` or ``"bold"``."""
    return Text(printable(text), style)


def say(text: str, *, err: bool = False) -> None:
    """Print one line, to standard error with ``err``; foreign text in it is escaped."""
    stream = sys.stderr if err else sys.stdout
    line = printable(text, None)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def show_whole(table: Any) -> None:
    """Print a table or tree as wide as its cells are, also where the terminal is narrower."""
    console = Console()
    wide = console.options.update(width=MOST_WIDTH)
    console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table)
