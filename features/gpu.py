"""The NVIDIA GPU of this machine, by its driver's library (NVML); torch is not imported."""

from __future__ import annotations

import logging
import os
import re
import runpy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from presage.features.device import Device, catalogue, gpu_names

log = logging.getLogger(__name__)

BRANDS = ("nvidia", "tesla", "geforce")


def detect_gpu() -> Device | None:
    """First NVIDIA GPU, by its data sheet or else its driver's facts.

    None without a GPU, its driver or nvidia-ml-py, and where the installed torch, or
    ``CUDA_VISIBLE_DEVICES``, keeps jobs from running on it.
    """
    try:
        import pynvml
    except ImportError:
        return None
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return _first_gpu(pynvml) if torch_runs_on_nvidia() else None
    except pynvml.NVMLError as error:
        log.warning("an NVIDIA GPU is left out, the processor stands in: NVML says %s", error)
        return None
    finally:
        pynvml.nvmlShutdown()


def gpu_kind(name: str) -> str | None:
    """Kind in the catalogue of the GPU that NVML calls ``name``; None when no sheet names it."""
    return gpu_names().get(" ".join(_words(name)))


def torch_runs_on_nvidia() -> bool:
    """Whether the installed torch is built with CUDA; True without torch, since nothing runs."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return True
    # The file alone: importing torch takes seconds.
    version = Path(torch.origin).with_name("version.py")
    return runpy.run_path(str(version)).get("cuda") is not None


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\s_-]+", name.lower()) if word and word not in BRANDS]


def _first_gpu(nvml: Any) -> Device | None:
    if not nvml.nvmlDeviceGetCount():
        return None
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    name = str(nvml.nvmlDeviceGetName(handle))
    memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    kind = gpu_kind(name)
    if kind is not None:
        return replace(catalogue()[kind], memory_bytes=memory_bytes)
    return _by_facts(nvml, handle, kind="-".join(_words(name)), memory_bytes=memory_bytes)


def _by_facts(nvml: Any, handle: Any, *, kind: str, memory_bytes: int) -> Device:
    """A GPU without a data sheet; tensor cores are not counted until it is calibrated."""
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    cores = int(nvml.nvmlDeviceGetNumGpuCores(handle))
    core_hz = 1e6 * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    memory_hz = 1e6 * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
    bus_bytes = nvml.nvmlDeviceGetMemoryBusWidth(handle) / 8
    return Device(
        kind=kind,
        compute_capability=float(f"{major}.{minor}"),
        memory_bytes=memory_bytes,
        cores=cores,
        # A fused multiply-add per core and clock; two transfers per clock of the memory. Both are
        # how the data sheets' own figures come about.
        peak_flops_per_s={"fp32": 2 * cores * core_hz},
        memory_bandwidth_bytes_per_s=2 * memory_hz * bus_bytes,
        op_overhead_s=catalogue()["t4"].op_overhead_s,
        context_bytes=catalogue()["t4"].context_bytes,
    )
