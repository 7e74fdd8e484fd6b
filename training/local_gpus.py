"""GPUs of this machine, divided among the workers of a local job: each worker sees one GPU.

On a cluster the agents do this for each task.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_DEVICE_FILE = re.compile(r"nvidia\d+")


def visible_gpus(devices: Path = Path("/dev")) -> list[str]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    listed = os.environ.get(VISIBLE_GPUS)
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    count = sum(bool(_DEVICE_FILE.fullmatch(path.name)) for path in devices.glob("nvidia*"))
    return [str(number) for number in range(count)]


class LocalGpus:
    """Allocation of one GPU to each worker: the one that the fewest workers have.

    Parameters
    ----------
    gpus : sequence of str
        GPUs of the job. With fewer than two, workers keep the environment of this process.
    """

    def __init__(self, gpus: Sequence[str]) -> None:
        self._gpus = list(gpus)
        self._allocated: dict[str, str] = {}  # GPU by worker

    def allocate(self, worker: str) -> dict[str, str]:
        """Return the environment variables with which a worker sees its GPU only."""
        if len(self._gpus) < 2:
            return {}
        workers = list(self._allocated.values())
        self._allocated[worker] = min(self._gpus, key=workers.count)
        return {VISIBLE_GPUS: self._allocated[worker]}

    def release(self, worker: str) -> None:
        """Return the GPU of a worker that has ended."""
        self._allocated.pop(worker, None)
