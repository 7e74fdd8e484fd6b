r"""Text from users, files and the network, made safe to print on a terminal or a page.

A name may hold control sequences that move the cursor, bidirectional overrides that reorder the
line it stands in, characters that are not seen, or a line break that forges a line of output.
Each becomes a visible escape such as ``\x1b`` or ``\u202e``; all else stays as it is. Strong
right-to-left letters (Hebrew, Arabic) are letters of names and stay.
"""

from __future__ import annotations

import unicodedata
from typing import Any

MOST_COLUMNS = 1000  # of one text
_MOST_MARKS = 4  # combining marks on one letter: more than any script needs
_MARKS = frozenset({"Mn", "Me"})
_WIDE = frozenset({"W", "F"})
# Printable to Unicode, and yet nothing is seen: joiners, fillers, variation selectors.
_UNSEEN = frozenset(
    (
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
        *range(0x180B, 0x1810),
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
    )
)


def printable(text: str, most: int | None = MOST_COLUMNS, *, keep: str = "") -> str:
    """Return ``text`` in one line, with everything that is not a visible character escaped.

    Parameters
    ----------
    most : int, optional
        Terminal columns; a longer text loses its end to an ellipsis. None for no bound.
    keep : str
        Characters that are left as they are, such as a line break.
    """
    if not (text.isascii() and text.isprintable()):
        text = _escaped(text, keep)
    return text if most is None else _bounded(text, most)


def error_line(error: object) -> str:
    """Return what an error says in one line, as it may be printed."""
    return printable(" ".join(str(error).split()), 2 * MOST_COLUMNS)


def on_page(value: Any) -> Any:
    """Return a value of a page's template as it may be shown: Jinja's ``finalize``.

    Markup stays as it is. Line breaks and tabs are white space on a page.
    """
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return printable(value, None, keep="\n\t")
    return value


def is_visible(letter: str) -> bool:
    """Return whether a character is visible and does not affect other characters."""
    return letter.isprintable() and ord(letter) not in _UNSEEN


def escape(letter: str) -> str:
    """Return the escape of a character, as Python writes it."""
    code = ord(letter)
    if code < 0x100:
        return {"\t": "\\t", "\n": "\\n", "\r": "\\r"}.get(letter, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped(text: str, keep: str) -> str:
    found: list[str] = []
    marks = _MOST_MARKS  # a mark at the start would sit on what stands before the text
    for letter in text:
        is_mark = unicodedata.category(letter) in _MARKS
        marks = marks + 1 if is_mark else 0
        shown = is_visible(letter) and marks <= _MOST_MARKS
        found.append(letter if shown or letter in keep else escape(letter))
    return "".join(found)


def _bounded(text: str, most: int) -> str:
    if len(text) * 2 <= most:
        return text
    columns = [_columns(letter) for letter in text]
    if sum(columns) <= most:
        return text
    end = 0
    for end, width in enumerate(columns):  # noqa: B007
        most -= width
        if most < 1:  # the ellipsis takes one
            break
    return f"{text[:end]}…"


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in _MARKS:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in _WIDE else 1
