"""Commands of ``presage`` run in this process, without the seconds in which Python starts.

Each command is also tested as a process of its own by at least one test.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from presage.__main__ import main


def presage(*words: object, cwd: Path | None = None, **variables: str) -> CompletedProcess[str]:
    """Run a command as ``subprocess.run`` would, and return its status and output.

    Parameters
    ----------
    *words : object
        Words of the command after ``presage``.
    cwd : Path, optional
        Working folder of the command.
    **variables : str
        Environment variables of the command, in addition to those of this process.
    """
    command = ["presage", *map(str, words)]
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    status: object = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(streams[0]),
        redirect_stderr(streams[1]),
    ):
        patch.setattr("sys.argv", command)
        for name, value in variables.items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    assert isinstance(status, int), status
    return CompletedProcess(command, status, out, err)
