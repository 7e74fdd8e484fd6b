"""What the tests of outcome logs share: appends, keys, and child processes that append."""

from __future__ import annotations

import subprocess
import sys

from presage.serving.outcomes.outcome_log import Appended, OutcomeLog, read_outcomes
from presage.system.files.log_address import LogAddress

# What every child process begins with: the log at its first argument.
CHILD = """
import itertools, os, resource, sys, threading
from pathlib import Path
from presage.errors import OutcomeLogError
from presage.serving.outcomes.outcome_log import OutcomeLog
from presage.system.files.log_address import log_address

def append(log, key, size=500):
    return log.append([(key, key.encode().ljust(size))], reported_by="child").result()

path, *rest = sys.argv[1:]
"""


def append(log: OutcomeLog, *outcomes: tuple[str, bytes], by: str = "alice") -> Appended:
    return log.append(outcomes, reported_by=by).result(timeout=30)


def keys(address: LogAddress, after: int = 0) -> list[str]:
    return [row.idempotency_key for row in read_outcomes(address, after=after)]


def start(program: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD + program, *map(str, args)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(program: str, *args: object) -> str:
    out, err = (child := start(program, *args)).communicate(timeout=60)
    assert child.returncode == 0, err
    return out
