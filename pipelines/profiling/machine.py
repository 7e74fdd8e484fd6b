"""Which machine and which versions a row was measured on."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from presage.features.device import Device
from presage.pipelines.profiling.samplers import is_gpu


def machine_digest(device: Device) -> str:
    """Short hash of processor, cores, memory, kernel and GPU; the host's name is not in it."""
    facts = (
        _cpu_model(),
        len(os.sched_getaffinity(0)),
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        platform.release(),
        *((device.kind,) if is_gpu(device) else ()),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def versions(device: Device) -> str:
    """Versions that measurements depend on, as "name=version" words."""
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
