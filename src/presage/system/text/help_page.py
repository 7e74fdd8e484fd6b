"""Text of a command's ``--help``, the same for every command; needs no optional package.

``presage serve`` uses argparse and the other commands use typer: both describe themselves as
sections here, so that a reader sees one layout.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

MAX_WIDTH = 100  # columns, also on a wider terminal
_MIN_WIDTH = 40
_TERM_WIDTH = 27  # columns of an option's name; a longer one has a line of its own


@dataclass(frozen=True, slots=True)
class Section:
    """Titled list of options, arguments or commands.

    Attributes
    ----------
    rows : sequence of (str, str)
        A name as the user writes it, and its help text.
    """

    title: str
    rows: Sequence[tuple[str, str]]


def help_page(usage: str, description: str, sections: Sequence[Section], examples: str) -> str:
    """Return the help of a command, as wide as the terminal, at most ``MAX_WIDTH`` columns.

    Parameters
    ----------
    usage : str
        The command line, such as ``presage predict [OPTIONS]``.
    description : str
        Paragraphs, separated by blank lines.
    examples : str
        Lines to show unchanged.
    """
    width = max(_MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size().columns))
    blocks = [_wrapped(usage, width, "Usage: ", "       ")]
    blocks += [_wrapped(text, width, "  ") for text in description.split("\n\n") if text.strip()]
    blocks += [_section(section, width) for section in sections if section.rows]
    if examples.strip():
        lines = textwrap.dedent(examples).strip("\n").splitlines()
        blocks.append("\n".join(["Examples:", *(f"  {line}".rstrip() for line in lines)]))
    return "\n\n".join(blocks) + "\n"


def with_notes(text: str, notes: Sequence[str]) -> str:
    """Return a help text with notes, such as its default, in brackets after its first sentence."""
    noted = f" ({', '.join(notes)})" if notes else ""
    first, separator, rest = text.partition(". ")
    return f"{first.removesuffix('.')}{noted}.{' ' if separator else ''}{rest}"


def _section(section: Section, width: int) -> str:
    longest = max(len(name) for name, _ in section.rows)
    column = min(longest, _TERM_WIDTH) + 4
    lines = [f"{section.title}:"]
    for name, text in section.rows:
        head = f"  {name}".ljust(column)
        if len(name) + 4 > column:
            lines.append(f"  {name}")
            head = " " * column
        lines.append(_wrapped(text, width, head, " " * column).rstrip())
    return "\n".join(lines)


def _wrapped(text: str, width: int, first: str, others: str | None = None) -> str:
    return textwrap.fill(
        " ".join(text.split()), width, initial_indent=first,
        subsequent_indent=first if others is None else others, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
