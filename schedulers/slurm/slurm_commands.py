"""Slurm's commands and the forms of their output."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from presage.errors import ServiceError, one_line

TIMEOUT_S = 60.0
UNLIMITED = "UNLIMITED"
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_FILTERS = ("SQUEUE_", "SINFO_")  # users' own filters and formats, in environment variables
_SETTING = re.compile(r"^(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)


def run_slurm(command: Sequence[str]) -> str:
    """Return the output of one of Slurm's commands.

    They find the cluster by ``SLURM_CONF`` as always, and print times in seconds since 1970. The
    variables by which users filter their own lists, such as ``SQUEUE_USERS``, have no effect.

    Raises
    ------
    ServiceError
        The command cannot be run, or slurmctld does not answer.
    """
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(_FILTERS)
    } | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(
            f"{command[0]} cannot be run ({one_line(error)}); check PATH and SLURM_CONF"
        ) from error
    if done.returncode:
        raise ServiceError(f"{command[0]} failed: {one_line(done.stderr)[:300]}")
    return done.stdout


def slurm_settings() -> Mapping[str, str]:
    """Return the settings of slurm.conf by name.

    Raises
    ------
    ServiceError
        slurmctld does not answer.
    """
    return dict(_SETTING.findall(run_slurm(["scontrol", "show", "config"])))


def format_option(widths: Mapping[str, int], *last: str) -> str:
    """Return the option ``--Format`` for columns of fixed widths."""
    return "--Format=" + ",".join([*(f"{name}:{width}" for name, width in widths.items()), *last])


def cells_of(line: str, widths: Mapping[str, int]) -> tuple[dict[str, str], str]:
    """Return the columns of a line by name, and the text behind them."""
    cells, begin = {}, 0
    for name, width in widths.items():
        cells[name] = line[begin : begin + width].strip()
        begin += width
    return cells, line[begin:].strip()


def minutes_of(text: str) -> int | None:
    """Return a time limit in minutes; None if it is unlimited.

    Raises
    ------
    ValueError
        The text is no time.
    """
    return None if text == UNLIMITED else seconds_of(text) // 60


def seconds_of(text: str) -> int:
    """Return a duration such as 1-02:00:00.

    Raises
    ------
    ValueError
        The text is no time.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def unix_s_of(text: str) -> int:
    """Return a time in seconds since 1970; 0 if it is not known."""
    return int(text) if text.isdigit() else 0
