"""The worker processes of runs; on a GPU some are begun before they are needed."""

from __future__ import annotations

import time
from collections import deque
from typing import Self

from presage.features.device.device import Device, Share
from presage.pipelines.profiling.running.gpu_sharing import environment_of
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.sampling.samplers import is_gpu
from presage.pipelines.profiling.zoo import JobConfig
from presage.system.child_process import Child

WORKER = "presage.pipelines.profiling.running.worker"

# Most members of a co-location. To import torch takes seconds of a processor, and of a GPU nothing:
# there the next run's workers import it while this one is measured.
SPARES = 4


class Workers:
    """Starts workers, and kills at the end what it holds in reserve."""

    def __init__(self, device: Device, options: RunOptions) -> None:
        self._device, self._options = device, options
        self._spares: deque[Child] = deque()

    def __enter__(self) -> Self:
        if is_gpu(self._device):
            self._spares.extend(self._start() for _ in range(SPARES))
        return self

    def __exit__(self, *_error: object) -> None:
        while self._spares:
            self._spares.popleft().kill()

    def begin(self, config: JobConfig, share: Share) -> Child:
        """A worker that builds the job on its share; the caller kills it.

        Raises
        ------
        ProfilingError
            The device cannot be shared so.
        """
        environment = environment_of(share, self._device)
        child = self._take()
        child.send({"job": config.name, "environment": environment, "begun_s": time.monotonic()})
        return child

    def _take(self) -> Child:
        while self._spares:
            child = self._spares.popleft()
            self._spares.append(self._start())
            if child.alive:
                return child
            child.kill()
        return self._start()

    def _start(self) -> Child:
        spec = {
            "threads": self._options.threads,
            "seed": self._options.seed,
            "memory_limit_bytes": self._options.memory_limit_bytes,
            "device": "cuda" if is_gpu(self._device) else "cpu",
        }
        return Child(WORKER, spec, threads=self._options.threads)
