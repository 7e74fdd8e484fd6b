"""Where a stage runs for `dvc exp run`: in the workspace, or in a temporary copy of it.

What DVC does not track, the registry and the logs of outcomes, is the workspace's in both.
"""

from __future__ import annotations

import os
from pathlib import Path


def experiment() -> str:
    """Name of the experiment that this stage runs for; "" in `dvc repro`, and by hand."""
    return os.environ.get("DVC_EXP_NAME", "")


def workspace() -> Path:
    """The workspace: another folder than this one in a temporary copy alone."""
    return Path(os.environ.get("DVC_ROOT", "."))
