"""The terminal: the one module through which tables and sentences are printed.

Most of what is printed holds names from users, files or the network. The console here escapes
every ``str`` that it is given, in a table's cell as in a sentence, and knows no markup: what is to
be coloured is a :func:`styled` text. Nothing else imports ``rich`` (tests/cli/test_terminal.py), so
a name cannot reach a terminal by another way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console as _Console
from rich.console import ConsoleOptions, JustifyMethod, OverflowMethod
from rich.measure import Measurement
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from presage.system.text.printable import printable

__all__ = [
    "Console", "Name", "Names", "Table", "Tree", "box", "clear_screen", "print_table", "say",
    "show_whole", "styled", "table_width",
]  # fmt: skip

MOST_WIDTH = 400  # columns of a table that is wider than the terminal
_MIN_NAME_WIDTH = 8  # columns to which the names in a table may be shortened
_MIN_TEXT_WIDTH = 24  # columns to which long texts are wrapped before names are shortened


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


@dataclass(frozen=True, slots=True)
class Name:
    """Cell with a name, identifier or path: a column too narrow for it shows no middle."""

    text: str

    def __rich_measure__(self, console: _Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(printable(self.text))
        return Measurement(min(width, _MIN_NAME_WIDTH), width)

    def __rich_console__(self, console: _Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(shorten_middle(printable(self.text), options.max_width), no_wrap=True)


@dataclass(frozen=True, slots=True)
class Names:
    """Cell with several names, one below the other where they do not fit in a line."""

    texts: Sequence[str]

    def __rich_measure__(self, console: _Console, options: ConsoleOptions) -> Measurement:
        one_line = cell_len(", ".join(map(printable, self.texts)))
        return Measurement(min(one_line, _MIN_NAME_WIDTH), one_line)

    def __rich_console__(self, console: _Console, options: ConsoleOptions) -> Iterator[Text]:
        names = [printable(text) for text in self.texts]
        if cell_len(", ".join(names)) <= options.max_width:
            yield Text(", ".join(names), no_wrap=True)
        else:
            yield from (Text(shorten_middle(n, options.max_width), no_wrap=True) for n in names)


def shorten_middle(text: str, width: int) -> str:
    """Return a text of at most ``width`` columns, with an ellipsis in place of its middle."""
    if cell_len(text) <= width:
        return text
    head, tail = "", ""
    for i in range(len(text)):
        start, end = text[: i // 2 + 1], text[len(text) - (i + 1) // 2 :]
        if cell_len(start) + cell_len(end) + 1 > width:
            break
        head, tail = start, end
    return f"{head}…{tail}"


def print_table(table: Table, *, is_whole: bool = False) -> None:
    """Print a table as wide as the terminal, or as COLUMNS says; a pipe gets whole cells.

    A table that is too wide wraps its texts between words and shortens its names in the middle,
    unless ``is_whole``: then its lines are longer than the terminal.
    """
    console = Console()
    console.width = MOST_WIDTH if is_whole else table_width()
    _fit(table, console)
    console.print(table)


def clear_screen() -> None:
    """Clear the terminal, so that the next table replaces the last one."""
    Console().clear()


def table_width() -> int:
    """Return how wide tables are: COLUMNS, else the terminal's width, else ``MOST_WIDTH``."""
    console = Console()
    return console.width if console.is_terminal or "COLUMNS" in os.environ else MOST_WIDTH


def _fit(table: Table, console: Console) -> None:
    """Set the widths of columns if the table is too wide: wrap headings, then texts, then names."""
    wide = console.options.update(width=MOST_WIDTH)
    excess = Measurement.get(console, wide, table).maximum - console.width
    if excess <= 0:
        return
    natural, *floors = zip(
        *(_sizes(column, console, wide) for column in table.columns), strict=True
    )
    widths = list(natural)
    for floor in floors:
        excess -= _shrink(widths, floor, excess)
    if excess == 0:  # otherwise rich has to break words
        for column, width in zip(table.columns, widths, strict=True):
            column.width = width


def _sizes(column: Column, console: Console, wide: ConsoleOptions) -> tuple[int, ...]:
    """Return a column's widths: whole, with wrapped heading, texts, short names, all of these."""
    head = Measurement.get(console, wide, column.header)
    cells = [Measurement.get(console, wide, cell) for cell in column.cells]
    whole = min(column.max_width or MOST_WIDTH, max((one.maximum for one in cells), default=0))
    least = max(head.minimum, max((one.minimum for one in cells), default=0))
    with_head = max(whole, head.minimum)
    if any(isinstance(cell, Name | Names) for cell in (column.header, *column.cells)):
        return max(whole, head.maximum), with_head, with_head, least, least
    if column.no_wrap:
        least = max(head.minimum, whole)
    wrapped = max(least, _MIN_TEXT_WIDTH) if whole > _MIN_TEXT_WIDTH else least
    return max(whole, head.maximum), with_head, wrapped, wrapped, least


def _shrink(widths: list[int], floors: Sequence[int], excess: int) -> int:
    """Reduce the widest columns, but none below its floor; return by how much in all."""
    for done in range(excess):
        shrinkable = [i for i, width in enumerate(widths) if width > floors[i]]
        if not shrinkable:
            return done
        widths[max(shrinkable, key=lambda i: widths[i])] -= 1
    return max(0, excess)


def show_whole(tree: Tree) -> None:
    """Print a tree as wide as its lines are, also where the terminal is narrower."""
    console = Console()
    wide = console.options.update(width=MOST_WIDTH)
    console.width = max(console.width, Measurement.get(console, wide, tree).maximum)
    console.print(tree)
