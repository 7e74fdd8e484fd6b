"""Queries to a GPU's driver: a value, None, or an error if the GPU is lost."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from presage.errors import ProfilingError
from presage.features.device.nvml_gpu import visible_gpu
from presage.pipelines.profiling.sampling.nvml_errors import Verdict, lost, verdict

log = logging.getLogger(__name__)


class NvmlDevice:
    """The GPU that jobs run on; ``driver`` is pynvml, or has its functions.

    Raises
    ------
    ProfilingError
        The GPU or its driver is gone, at creation or at a query.
    """

    def __init__(self, driver: Any = None, handle: Any = None) -> None:
        if driver is None:
            import pynvml

            driver = pynvml
        self.driver = driver
        self.never: dict[str, Verdict] = {}  # functions that are unsupported or forbidden
        try:
            driver.nvmlInit()
            self.handle = visible_gpu(driver) if handle is None else handle
        except driver.NVMLError as error:
            raise ProfilingError(lost(error)) from error

    def mig_slice(self, handle: Any) -> NvmlDevice:
        """Return a MIG slice of this GPU, with the same interface."""
        return NvmlDevice(self.driver, handle)

    def query(self, function: str, *arguments: Any, empty: Any = None) -> Any:
        """Return NVML's value for this GPU; ``empty`` if there is none yet, else None."""
        if not hasattr(self.driver, function):  # nvidia-ml-py is too old or too new for it
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
        """Return the memory in use by all processes."""
        info = self.query("nvmlDeviceGetMemoryInfo")
        return None if info is None else int(info.used)

    def _note(self, function: str, meaning: Verdict) -> None:
        if meaning in (Verdict.UNSUPPORTED, Verdict.FORBIDDEN):
            self.never[function] = meaning
        if meaning is Verdict.FORBIDDEN:
            warn_of_permission(function)

    def _is_there(self) -> bool:
        """Return whether the GPU responds to the simplest query; sandboxes may lack others."""
        try:
            self.driver.nvmlDeviceGetMemoryInfo(self.handle)
        except self.driver.NVMLError as error:
            return verdict(error) not in (Verdict.GONE, Verdict.SUSPECT)
        return True


@cache  # once per process, not once per window
def warn_of_permission(function: str) -> None:
    """Log which columns stay empty, and why."""
    log.warning(
        "NVML: no permission for %s, so its columns stay empty; run as root, or allow users to "
        "read the GPU's counters (NVreg_RestrictProfilingToAdminUsers=0)",
        function,
    )
