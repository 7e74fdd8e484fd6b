"""Presage predicts how a deep-learning job will behave before it runs.

The names below are imported when they are first used: ``import presage`` loads nothing else.

- ``Client``, ``AsyncClient``: clients of the prediction service.
- ``Job``, ``Device``, ``Share``, ``Placement``, ``Colocation``: what is predicted.
- ``Forecast``, ``Outcome``: a prediction with its interval, and what really happened.
- ``Policy``: base of scheduling policies.
- ``simulate``: the simulator: a trace on a cluster under a policy.
- ``progress``: progress and checkpoints of a job, reported from inside it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from presage.features.colocation import Colocation
    from presage.features.device.device import Device, Share
    from presage.features.forecast import Forecast
    from presage.features.job.job_description import Job
    from presage.features.placement import Placement
    from presage.schedulers.core.policy import Policy
    from presage.schedulers.live import job_progress as progress
    from presage.schedulers.simulator.simulate import simulate
    from presage.serving.client.client import AsyncPresageClient as AsyncClient
    from presage.serving.client.client import PresageClient as Client
    from presage.serving.outcomes.outcome import Outcome

__version__ = "0.1.0"

# ONNX Runtime 1.29 and newer writes a device id into the home folder when it is imported, and sends
# names and hashes of the models that it loads to its vendor. A user's own value wins.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_EXPORTS = {  # name -> module, and its name there; "" for the module itself
    "AsyncClient": ("presage.serving.client.client", "AsyncPresageClient"),
    "Client": ("presage.serving.client.client", "PresageClient"),
    "Colocation": ("presage.features.colocation", "Colocation"),
    "Device": ("presage.features.device.device", "Device"),
    "Forecast": ("presage.features.forecast", "Forecast"),
    "Job": ("presage.features.job.job_description", "Job"),
    "Outcome": ("presage.serving.outcomes.outcome", "Outcome"),
    "Placement": ("presage.features.placement", "Placement"),
    "Policy": ("presage.schedulers.core.policy", "Policy"),
    "Share": ("presage.features.device.device", "Share"),
    "progress": ("presage.schedulers.live.job_progress", ""),
    "simulate": ("presage.schedulers.simulator.simulate", "simulate"),
}
__all__ = [
    "AsyncClient",
    "Client",
    "Colocation",
    "Device",
    "Forecast",
    "Job",
    "Outcome",
    "Placement",
    "Policy",
    "Share",
    "__version__",
    "progress",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Import an exported name when it is first used."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _EXPORTS[name]
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    """Return the exported names, for completion in a shell."""
    return sorted(__all__)
