"""Options that every group of commands has."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from presage.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_of(duration: str, option: str) -> float:
    """Return the seconds of "150", "150s", "9m", "1h" or "2d"."""
    number = duration.rstrip("smhd")
    try:
        found = float(number) * _UNITS.get(duration[len(number) :], math.nan)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise typer.BadParameter(
            f"{duration!r} is not a duration; write it as 150s, 9m or 1h", param_hint=option
        )
    return found


def create_folder(folder: Path, option: str) -> None:
    """Create an output folder before the minutes that computing its content takes.

    Raises
    ------
    ConfigError
        It cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{option} {folder}: {error.strerror}; name a folder") from None
