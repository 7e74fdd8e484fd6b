"""The device of this machine: its GPU, or its processor."""

from __future__ import annotations

import os

from presage.features.device.device import Device, catalogue, cpu_kind, usable_cores
from presage.features.device.nvml_gpu import detect_gpu


def detect(*, gpu: bool = True) -> Device:
    """Return the device of this machine that jobs are measured on.

    It is an NVIDIA GPU if its driver answers and the installed torch is built for it, otherwise
    the processor with the catalogue's nominal speed. `presage profile` calibrates both.

    Parameters
    ----------
    gpu : bool
        False for the processor in any case, as when torch finds no GPU to run on.
    """
    return (detect_gpu() if gpu else None) or _processor()


def _processor() -> Device:
    cores, per_core = usable_cores(), catalogue()["cpu-1"]
    return Device(
        kind=cpu_kind(),
        compute_capability=0.0,
        memory_bytes=_physical_memory_bytes() or per_core.memory_bytes * cores,
        cores=cores,
        peak_flops_per_s={name: value * cores for name, value in per_core.peak_flops_per_s.items()},
        memory_bandwidth_bytes_per_s=per_core.memory_bandwidth_bytes_per_s * cores,
        op_overhead_s=per_core.op_overhead_s,
        context_bytes=per_core.context_bytes,
    )


def _physical_memory_bytes() -> int | None:
    """Return the memory of the machine; None if the system does not say (Windows)."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return size if size > 0 else None
