"""Pages that benchmarks write: Markdown whose lines outside of tables are short."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

COLUMNS = 100
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
