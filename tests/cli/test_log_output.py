"""A job's log: bytes in a pipe, visible characters on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from presage.cli.output.log_output import TerminalText
from presage.system.text.printable import is_visible
from tests.support.hostile_text import ATTACKS

PROGRAM = """
import sys
from presage.cli.output.log_output import print_log
pieces = [b"\\x1b]0;title\\x07\\x1b[3", b"1mred\\x1b[0m\\tx\\r\\n\\xff\\xe2\\x80", b"\\xaeabc\\x1b"]
print_log(iter(pieces))
"""
LOG = b"\x1b]0;title\x07\x1b[31mred\x1b[0m\tx\r\n\xff\xe2\x80\xaeabc\x1b"


def shown(pieces: list[bytes]) -> str:
    text = TerminalText()
    return "".join(text.feed(piece) for piece in pieces) + text.feed(b"", final=True)


def test_a_pipe_gets_the_unchanged_bytes():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)

    assert done.stdout == LOG


def test_a_terminal_gets_colours_and_other_controls_as_escapes():
    mine, its = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=its) as running:
        assert running.wait(60) == 0
        os.close(its)
        got = os.read(mine, 65_536)
        os.close(mine)

    assert got == (
        rb"\x1b]0;title\x07" + b"\x1b[31mred\x1b[0m\tx\r\r\n" + rb"\xff\u202eabc\x1b" + b"\x1b[0m"
    )


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=8), st.sampled_from([a.encode(errors="replace") for a in ATTACKS])
        )
    )
)
def test_chunk_boundaries_do_not_matter_and_only_colours_are_applied(pieces):
    whole = shown([b"".join(pieces)])

    assert shown(pieces) == whole
    assert shown([bytes([byte]) for byte in b"".join(pieces)]) == whole
    parts = whole.split("\x1b[")
    assert all(part.split("m")[0].strip("0123456789;:") == "" for part in parts[1:])
    assert not {c for c in "".join(parts) if not (is_visible(c) or c in "\n\r\t")}
