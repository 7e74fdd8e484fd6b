"""Programs that share a table with a test: an owner in Python, and readers in C."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import presage.collectives.table as package

HEADER = Path(package.__file__).with_name("presage_inc_table.h")
needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

OWNER = """
import os, sys, time
from pathlib import Path
from presage.collectives.core.view import JobView
from presage.collectives.table.layout import SEQUENCE_WORD
from presage.collectives.table.writer import DecisionTable
folder, what = Path(sys.argv[1]), sys.argv[2]
table = DecisionTable.create("job", 0, folder=folder, capacity=4096)
def view(epoch):
    return JobView(epoch, 3 * epoch, bytes([epoch % 251]) * (1 + epoch * 7 % 4096))
table.publish(view(1))
if what == "dies while it writes":
    table.words[SEQUENCE_WORD] |= 1
child = os.fork() if what == "has a child" else 1
if child:
    os.write(1, b'%d\\n' % child)
epoch = 1
while what == "publishes":
    epoch += 1
    table.publish(view(epoch))
    table.start(3 * epoch)
    time.sleep(0.0005)  # a reader waits for a write to end, not for the owner's next turn
time.sleep(60)
"""


def start_owner(folder, what="waits"):
    """Start a process that owns a table, and wait until it has published a view."""
    words = [sys.executable, "-c", OWNER, str(folder), what]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert int(process.stdout.readline()) > 0
    return process


def is_consistent(view):
    """Return whether a view is one that the owner published, not parts of two."""
    epoch = view.epoch
    expected = bytes([epoch % 251]) * (1 + epoch * 7 % 4096)
    return (view.first_number, view.decisions) == (3 * epoch, expected)


def compile_c(folder, source, *flags):
    """Compile a program that includes the header; return its path."""
    code, program = folder / "program.c", folder / "program"
    code.write_text(f'#define _GNU_SOURCE\n#include "{HEADER}"\n#include <stdio.h>\n{source}')
    warnings = ["-Wall", "-Wextra", "-Werror", "-std=c11", "-O2"]
    subprocess.run(["cc", *warnings, *flags, "-o", program, code], check=True)
    return program


def run_c(program, *words, timeout_s=60):
    """Run a compiled program; return its words."""
    done = subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, timeout=timeout_s, check=True,
        env={**os.environ},
    )  # fmt: skip
    return done.stdout.split()
