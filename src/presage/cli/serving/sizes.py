"""Numbers of GPUs and nodes on the command line: "8" or "8x2"."""

from __future__ import annotations

import re

from presage.errors import ConfigError
from presage.features.scaling.scaling_request import GpuPlacement, MeasuredStep

_SIZE = re.compile(r"([0-9]{1,6})(?:x([0-9]{1,6}))?")


def read_size(text: str, option: str) -> GpuPlacement:
    """Return the size that a text names.

    Raises
    ------
    ConfigError
        It is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(
            f"{option}: {text!r} is no size; give GPUS or GPUSxNODES, such as 8 or 8x2"
        )
    return GpuPlacement(int(found[1]), int(found[2] or 1))


def read_sizes(text: str) -> tuple[GpuPlacement, ...]:
    """Return the sizes of a list that is separated by commas."""
    return tuple(read_size(part, "--scaling") for part in text.split(","))


def read_measured(text: str) -> MeasuredStep:
    """Return the measured step of "SIZE=SECONDS".

    Raises
    ------
    ConfigError
        The text has another form.
    """
    size, _, seconds = text.partition("=")
    try:
        return MeasuredStep(read_size(size, "--measured"), float(seconds))
    except ValueError as error:
        raise ConfigError(f"--measured: {text!r} must be SIZE=SECONDS, such as 8x2=0.31") from error
