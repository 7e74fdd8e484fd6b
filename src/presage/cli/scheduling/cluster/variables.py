"""Environment variables that ``presage cluster submit`` passes to a job, which may be secret.

Every user of the machine can see a value on the command line, in ``ps`` and in /proc.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from presage.errors import ConfigError, one_line
from presage.system.text.terminal import say

_MOST_BYTES = 1024 * 1024  # no job is larger


def job_variables(names: Sequence[str], file: Path | None) -> Mapping[str, str]:
    """Return the variables of ``--env`` and ``--env-file``; the former take precedence.

    Raises
    ------
    ConfigError
        A variable is not set, a value is on the command line, or the file cannot be read.
    """
    found = {} if file is None else _read(file)
    for name in names:
        if "=" in name:
            raise ConfigError(
                f"--env {name.partition('=')[0]!r}: other users can see a value on the command "
                "line; set the variable and give --env NAME, or write NAME=VALUE into a file and "
                "give --env-file FILE"
            )
        if name not in os.environ:
            raise ConfigError(
                f"--env {name!r}: no variable of that name is set here; set it, or write "
                "NAME=VALUE into a file and give --env-file FILE"
            )
        found[name] = os.environ[name]
    return found


def _read(path: Path) -> dict[str, str]:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            mode = os.fstat(opened).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError(f"--env-file {path}: not a regular file; name one")
            content = file.read(_MOST_BYTES + 1)
        lines = content.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--env-file {path}: cannot be read ({one_line(error)}); name a file with a line "
            "NAME=VALUE for each variable"
        ) from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"--env-file {path}: is larger than {_MOST_BYTES} bytes; write less")
    if mode & 0o077:
        say(f"--env-file {path}: other users can read it; chmod 600 {path}", err=True)
    return dict(
        _pair(path, number, line) for number, line in enumerate(lines, 1) if _is_assignment(line)
    )


def _is_assignment(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _pair(path: Path, number: int, line: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--env-file {path}:{number}: must be NAME=VALUE")  # not the line itself
    return name.strip(), value
