"""Presage predicts how a deep-learning job will behave before it runs.

``from presage import simulate`` is the Python entry to the simulator; it is imported on first use.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# ONNX Runtime 1.29 and newer writes a device id into the home folder when it is imported, and sends
# names and hashes of the models that it loads to its vendor. A user's own value wins.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def __getattr__(name: str) -> Any:
    """Import the simulator when it is first used: ``import presage`` stays light."""
    if name == "simulate":
        return import_module("presage.schedulers.simulator.simulate").simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
