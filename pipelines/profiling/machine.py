"""Identity of the machine and versions of the software that measured a row."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from presage.errors import ProfilingError
from presage.features.device.device import Device, usable_cores
from presage.pipelines.profiling.sampling.samplers import is_gpu


def require_linux() -> None:
    """Raise on other systems, which lack /proc and a signal at the parent's death.

    Raises
    ------
    ProfilingError
        The system is not Linux.
    """
    if platform.system() != "Linux":
        raise ProfilingError(
            f"profiling needs Linux, but this is {platform.system()}; measure on a Linux machine, "
            "in a container or in WSL, and copy the folder of tables here"
        )


def machine_digest(device: Device) -> str:
    """Return a short hash of processor, cores, memory, kernel and GPU, without the host name."""
    facts = (
        _cpu_model(),
        usable_cores(),
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        platform.release(),
        *((device.kind,) if is_gpu(device) else ()),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def versions(device: Device) -> str:
    """Return the versions that affect measurements, as "name=version" words."""
    import torch

    words = [f"python={platform.python_version()}", f"torch={torch.__version__}"]
    if is_gpu(device):
        import pynvml

        pynvml.nvmlInit()
        words.append(f"driver={pynvml.nvmlSystemGetDriverVersion()}")
    return " ".join(words)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
