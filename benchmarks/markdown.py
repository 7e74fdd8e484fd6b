"""Pages that benchmarks write: Markdown whose lines outside of tables are short."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

COLUMNS = 100
KEPT = " †"  # mark of a figure of an earlier run
_ITEM = re.compile(r" *(?:[-*] |\d+\. )")
_UNBROKEN = ("|", "#", ">", "!", "<")  # tables, headings, quotes, pictures, HTML
_CODE = re.compile(r"`[^`]+`")
# A space before text that would begin a list, a heading or a quote at the beginning of a line.
_NO_BREAK = re.compile(r" (?=(?:[-+*#>=]+|\d+[.)]) )")


def write_page(path: Path, lines: str | Iterable[str]) -> None:
    """Write a page, with long paragraphs wrapped and one newline at the end."""
    text = lines if isinstance(lines, str) else "\n".join(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(wrap_paragraphs(text).rstrip() + "\n")


def section(page: str, heading: str) -> str:
    """Return the text under a heading of a page, with its subsections.

    Raises
    ------
    ValueError
        If the page lacks the heading.
    """
    lines = page.splitlines()
    if heading not in lines:
        raise ValueError(f"the page has no heading {heading!r}")
    start = lines.index(heading) + 1
    level = len(heading) - len(heading.lstrip("#"))
    end = start
    while end < len(lines) and not re.match(f"#{{1,{level}}} ", lines[end]):
        end += 1
    return "\n".join(lines[start:end]).strip("\n")


def table_rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, its header first.

    Raises
    ------
    ValueError
        If the page lacks the heading, or the section a table.
    """
    lines = section(page, heading).splitlines()
    below = itertools.dropwhile(lambda line: not line.startswith("|"), lines)
    table = list(itertools.takewhile(lambda line: line.startswith("|"), below))
    if not table:
        raise ValueError(f"there is no table under {heading!r}")
    rows = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in table]
    return [rows[0], *rows[2:]]


def table_column(page: str, heading: str, name: str) -> list[str]:
    """Return the cells of a column of the first table under a heading.

    Raises
    ------
    ValueError
        If the page lacks the heading, or the table the column.
    """
    header, *rows = table_rows(page, heading)
    if name not in header:
        raise ValueError(f"the table under {heading!r} has no column {name!r}")
    return [row[header.index(name)] for row in rows]


def kept_row(page: str, heading: str, key: list[str]) -> list[str]:
    """Return the row of an earlier page that begins with a key, the key's last cell marked.

    Raises
    ------
    ValueError
        If the page lacks the heading, or the table the row.
    """
    for row in table_rows(page, heading):
        if [cell.removesuffix(KEPT) for cell in row[: len(key)]] == key:
            return [*key[:-1], key[-1] + KEPT, *row[len(key) :]]
    raise ValueError(f"the table under {heading!r} has no row of {key}")


def wrap_paragraphs(text: str) -> str:
    """Wrap the paragraphs and list items of a page that have a line of more than 100 columns."""
    lines: list[str] = []
    paragraph: list[str] = []
    is_code = False
    for line in text.splitlines():
        is_fence = line.lstrip().startswith("```")
        is_text = not (is_code or is_fence or not line.strip() or line.startswith(_UNBROKEN))
        is_code ^= is_fence
        if not is_text or _ITEM.match(line):
            lines += _wrapped(paragraph)
            paragraph = []
        if is_text:
            paragraph.append(line)
        else:
            lines.append(line)
    return "\n".join([*lines, *_wrapped(paragraph)])


def _wrapped(paragraph: list[str]) -> list[str]:
    if max(map(len, paragraph), default=0) <= COLUMNS:
        return paragraph
    indent = " " * (len(paragraph[0]) - len(paragraph[0].lstrip()))
    item = _ITEM.match(paragraph[0])
    text = " ".join(line.strip() for line in paragraph)
    text = _CODE.sub(lambda code: code[0].replace(" ", "\0"), _NO_BREAK.sub("\0", text))
    lines = textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=" " * len(item[0]) if item else indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]
