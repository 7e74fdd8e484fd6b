"""Folder in which a stage runs for `dvc exp run`: the workspace, or a temporary copy of it.

In both cases the registry and the outcome logs, which DVC does not track, are the workspace's.
"""

from __future__ import annotations

import os
from pathlib import Path


def experiment() -> str:
    """Return the name of the experiment that this stage runs for; "" without one."""
    return os.environ.get("DVC_EXP_NAME", "")


def workspace() -> Path:
    """Return the workspace, which differs from the current folder in a temporary copy only."""
    return Path(os.environ.get("DVC_ROOT", "."))
