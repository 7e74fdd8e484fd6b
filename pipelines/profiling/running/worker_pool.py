"""Worker processes of runs; on a GPU, some start before they are needed."""

from __future__ import annotations

import time
from collections import deque
from typing import Self

from presage.features.device.device import Device, Share
from presage.pipelines.profiling.running.gpu_sharing import environment_of
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.sampling.samplers import is_gpu
from presage.pipelines.profiling.zoo import JobConfig
from presage.system.processes.child_process import Child

WORKER = "presage.pipelines.profiling.running.worker"

# Maximum members of a co-location. Importing torch takes processor seconds but no GPU time, so on a
# GPU the next run's workers import it while the current run is measured.
SPARES = 4


class Workers:
    """Starts workers, and kills spare workers at the end."""

    def __init__(self, device: Device, options: RunOptions) -> None:
        self._device, self._options = device, options
        self.spares: deque[Child] = deque()

    def __enter__(self) -> Self:
        if is_gpu(self._device):
            self.spares.extend(self._start() for _ in range(SPARES))
        return self

    def __exit__(self, *_error: object) -> None:
        while self.spares:
            self.spares.popleft().kill()

    def begin(self, config: JobConfig, share: Share) -> Child:
        """Return a worker that builds the job on its share; the caller must kill it.

        Raises
        ------
        ProfilingError
            The device does not support the share.
        """
        environment = environment_of(share, self._device)
        child = self._take()
        child.send({"job": config.name, "environment": environment, "begun_s": time.monotonic()})
        return child

    def _take(self) -> Child:
        while self.spares:
            child = self.spares.popleft()
            self.spares.append(self._start())
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
