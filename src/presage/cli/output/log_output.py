"""Log of a job on standard output: bytes for a pipe, visible characters for a terminal."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterable

from presage.system.text.printable import escape, is_visible

_KEPT = "\n\r\t"
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,40}m")
# The start of a colour at the end of a piece, whose rest may be in the next one.
_BEGUN = re.compile(r"\x1b(?:\[[0-9;:]{0,40})?\Z")
_RESET = "\x1b[0m"


class TerminalText:
    """Decoder of a job's log for a terminal.

    Line breaks, carriage returns, tabs and colours (SGR) are kept. Other control sequences, which
    could set the title, write to the clipboard or repaint the screen, are escaped, as are invisible
    characters and bytes that are not UTF-8. Pieces may end anywhere.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""
        self._is_coloured = False

    def feed(self, piece: bytes, *, final: bool = False) -> str:
        """Return the text that can be printed; with ``final`` all of it, and colours are reset."""
        text = self._rest + self._decoder.decode(piece, final)
        begun = None if final else _BEGUN.search(text)
        end = begun.start() if begun else len(text)
        text, self._rest = text[:end], text[end:]
        shown, at = [], 0
        for colour in _COLOUR.finditer(text):
            shown += [_visible(text[at : colour.start()]), colour[0]]
            at, self._is_coloured = colour.end(), True
        shown.append(_visible(text[at:]))
        if final and self._is_coloured:
            shown.append(_RESET)
        return "".join(shown)


def print_log(pieces: Iterable[bytes]) -> None:
    """Print a log as it arrives; unchanged if standard output is not a terminal."""
    out = sys.stdout.buffer
    if not sys.stdout.isatty():
        for piece in pieces:
            out.write(piece)
            out.flush()
        return
    text = TerminalText()
    try:
        for piece in pieces:
            out.write(text.feed(piece).encode())
            out.flush()
    finally:
        out.write(text.feed(b"", final=True).encode())
        out.flush()


def _visible(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in _KEPT or is_visible(c) else escape(c) for c in text)
