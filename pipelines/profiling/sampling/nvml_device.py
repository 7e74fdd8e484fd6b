"""A GPU as NVIDIA's driver tells of it: a question has an answer, or none, or the GPU is lost."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from presage.errors import ProfilingError
from presage.features.device.nvml_gpu import visible_gpu
from presage.pipelines.profiling.sampling.nvml_errors import Verdict, lost, verdict

log = logging.getLogger(__name__)


class NvmlDevice:
    """The GPU that jobs run on; ``driver`` is pynvml, or what has its functions.

    Raises
    ------
    ProfilingError
        When made or asked: the GPU or its driver is gone.
    """

    def __init__(self, driver: Any = None, handle: Any = None) -> None:
        if driver is None:
            import pynvml

            driver = pynvml
        self.driver = driver
        self.never: dict[str, Verdict] = {}  # questions it does not answer, or not to this user
        try:
            driver.nvmlInit()
            self.handle = visible_gpu(driver) if handle is None else handle
        except driver.NVMLError as error:
            raise ProfilingError(lost(error)) from error

    def part(self, handle: Any) -> NvmlDevice:
        """A MIG slice of this GPU, to be asked in the same way."""
        return NvmlDevice(self.driver, handle)

    def ask(self, function: str, *arguments: Any, empty: Any = None) -> Any:
        """NVML's answer about this GPU; ``empty`` if there is nothing to tell, else None."""
        if not hasattr(self.driver, function):  # an nvidia-ml-py too old for it, or too new
            self.never[function] = Verdict.UNSUPPORTED
        if function in self.never:
            return None
        try:
            return getattr(self.driver, function)(self.handle, *arguments)
        except self.driver.NVMLError as error:
            meaning = verdict(error)
            if meaning is Verdict.GONE or (meaning is Verdict.SUSPECT and not self._is_there()):
                raise ProfilingError(lost(error)) from error
            self._note(function, meaning)
            return empty if meaning is Verdict.EMPTY else None

    def memory_used_bytes(self) -> int | None:
        """Memory that is taken, by anyone."""
        info = self.ask("nvmlDeviceGetMemoryInfo")
        return None if info is None else int(info.used)

    def _note(self, function: str, meaning: Verdict) -> None:
        if meaning in (Verdict.UNSUPPORTED, Verdict.FORBIDDEN):
            self.never[function] = meaning
        if meaning is Verdict.FORBIDDEN:
            warn_of_permission(function)

    def _is_there(self) -> bool:
        """Whether the GPU answers the simplest question; a sandbox may not know the others."""
        try:
            self.driver.nvmlDeviceGetMemoryInfo(self.handle)
        except self.driver.NVMLError as error:
            return verdict(error) not in (Verdict.GONE, Verdict.SUSPECT)
        return True


@cache  # once a process, not once a window
def warn_of_permission(function: str) -> None:
    """Say what a table will lack, and why."""
    log.warning(
        "NVML: no permission for %s, its columns stay empty; run as root, or let users read the "
        "GPU's counters (NVreg_RestrictProfilingToAdminUsers=0)",
        function,
    )
