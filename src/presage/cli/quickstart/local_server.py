"""Prediction server of this machine that ends with the command that started it, however it ends."""

from __future__ import annotations

import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from presage.errors import ServiceError, one_line
from presage.system.processes.bound_process import bound_command

START_LIMIT_S = 60.0
_END_LIMIT_S = 10.0


@contextmanager
def local_server(*options: str) -> Iterator[str]:
    """Yield "host:port" of a new ``presage serve`` on a free port.

    Parameters
    ----------
    *options : str
        Further options of ``presage serve``.

    Raises
    ------
    ServiceError
        The server did not start within ``START_LIMIT_S``.
    """
    serve = [sys.executable, "-m", "presage", "serve", "--port", "0", "--no-outcomes", *options]
    command = bound_command(serve)
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            line = _first_line(process)
            if not line.startswith("serving release "):
                raise ServiceError(f"{_problem(process, errors)}; run `presage serve` to see why")
            yield line.split()[-1]
        finally:
            _end(process)


def _problem(process: subprocess.Popen[str], errors: IO[str]) -> str:
    """Return why the server did not start."""
    try:
        process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return f"presage serve did not start within {START_LIMIT_S:.0f} s"
    errors.seek(0)
    last = errors.read().strip().rpartition("\n")[2]
    return f"presage serve did not start: {one_line(last)}"


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_LIMIT_S)
    return process.stdout.readline() if ready else ""


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
