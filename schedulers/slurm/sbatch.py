"""Submission of a batch job with features, as its user on a login node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from presage.errors import ConfigError
from presage.features.job.job_description import JobFeatures
from presage.schedulers.slurm.feature_text import FEATURES_VARIABLE, OPTIONS_VARIABLE, to_text
from presage.system.files.user_file import read_regular
from presage.system.text.known_names import check_known

PINS = ("time", "memory", "nice")
_MAX_SCRIPT_BYTES = 4 * 1024 * 1024  # Slurm's own default limit
# Slurm counts these back from the time limit, so that a lowered limit would make them too early.
_BEFORE_LIMIT = re.compile(
    r"--signal\b|--deadline\b|--time-min\b|--mail-type[= ]\S*TIME_LIMIT", re.IGNORECASE
)


def job_variables(
    features: JobFeatures,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    pins: Sequence[str] = (),
    share: bool = False,
) -> dict[str, str]:
    """Return the environment variables that describe a job to job_submit.lua.

    The time limit is pinned for a job that Slurm is to signal or to notify before its limit.

    Parameters
    ----------
    arguments : sequence of str
        Arguments of sbatch; the lines ``#SBATCH`` of files among them are read.
    pins : sequence of str
        Values to leave unchanged, of ``PINS``.
    share : bool
        Whether the job may share a GPU with others, which slows it down.

    Raises
    ------
    ConfigError
        A pin is unknown.
    InvalidJobError
        The features are too large.
    """
    check_known(pins, PINS, "--pin ")
    options = {f"pin-{name}" for name in pins}
    if "SBATCH_SIGNAL" in environment or any(
        _BEFORE_LIMIT.search(text) for text in _options_text(arguments)
    ):
        options.add("pin-time")
    if share:
        options.add("share")
    return {FEATURES_VARIABLE: to_text(features), OPTIONS_VARIABLE: ",".join(sorted(options))}


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise ConfigError if there is nothing to submit."""
    if not arguments:
        raise ConfigError(
            "nothing to submit; give the script and the options of sbatch after --, as in "
            "`presage slurm sbatch --job job.json -- --gres=gpu:1 train.sh`"
        )


def _options_text(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments, and the lines with options of the scripts among them."""
    yield " ".join(arguments)
    for argument in arguments:
        if argument.startswith("-"):
            continue
        try:
            script = read_regular(Path(argument), _MAX_SCRIPT_BYTES)
        except (OSError, ValueError):
            continue
        for line in script.decode(errors="replace").splitlines():
            if line.startswith("#SBATCH"):
                yield line
