"""Detection of this machine's NVIDIA GPU with the driver's library (NVML), without torch."""

from __future__ import annotations

import logging
import os
import re
import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from presage.features.device.device import Device, catalogue, device_kind

log = logging.getLogger(__name__)

BRANDS = ("nvidia", "tesla", "geforce")


def detect_gpu() -> Device | None:
    """Return the first visible NVIDIA GPU, from its data sheet or else the driver's figures.

    The result is None without a GPU, its driver or nvidia-ml-py, and if the installed torch or
    ``CUDA_VISIBLE_DEVICES`` keeps jobs from running on it.
    """
    try:
        import pynvml
    except ImportError:
        return None
    if _first_visible() in ("", "-1"):
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return _first_gpu(pynvml) if torch_runs_on_nvidia() else None
    except pynvml.NVMLError as error:
        log.warning("using the processor instead of the NVIDIA GPU: NVML error: %s", error)
        return None
    finally:
        pynvml.nvmlShutdown()


@contextmanager
def open_gpu(driver: Any = None) -> Iterator[tuple[Any, Any]]:
    """Yield NVML, or ``driver`` with its functions, and the handle of the GPU that jobs run on.

    Raises
    ------
    ImportError
        nvidia-ml-py is not installed.
    pynvml.NVMLError
        No driver or no such GPU; also any NVML error raised in the block.
    """
    if driver is None:
        import pynvml

        driver = pynvml
    driver.nvmlInit()
    try:
        yield driver, visible_gpu(driver)
    finally:
        driver.nvmlShutdown()


def visible_gpu(nvml: Any) -> Any:
    """Return the handle of the GPU that jobs use: the first in ``CUDA_VISIBLE_DEVICES``, else 0.

    NVML ignores that variable and counts GPUs by their position on the bus, so jobs are started
    with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. For a MIG slice, the result is the GPU it belongs to.
    """
    visible = _first_visible()
    if visible.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(visible))
    if visible.startswith("MIG-"):
        slice_handle = nvml.nvmlDeviceGetHandleByUUID(visible)
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_handle)
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if nvml.nvmlDeviceGetUUID(handle).startswith(visible):  # CUDA accepts prefixes, too
            return handle
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)


def _first_visible() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


def torch_runs_on_nvidia() -> bool:
    """Return whether the installed torch is built with CUDA; True without torch."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return True
    # Read the version file only: importing torch takes seconds.
    version = Path(torch.origin).with_name("version.py")
    return runpy.run_path(str(version)).get("cuda") is not None


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\s_-]+", name.lower()) if word and word not in BRANDS]


def _first_gpu(nvml: Any) -> Device | None:
    if not nvml.nvmlDeviceGetCount():
        return None
    handle = visible_gpu(nvml)
    name = str(nvml.nvmlDeviceGetName(handle))
    memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    kind = device_kind(name)
    if kind is not None:
        return replace(catalogue()[kind], memory_bytes=memory_bytes)
    return _describe_gpu(nvml, handle, kind="-".join(_words(name)), memory_bytes=memory_bytes)


def _describe_gpu(nvml: Any, handle: Any, *, kind: str, memory_bytes: int) -> Device:
    """Return a GPU without a data sheet; tensor cores do not count until it is calibrated."""
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
        # A fused multiply-add per core and clock; two transfers per clock of the memory. Data
        # sheets compute their figures in the same way.
        peak_flops_per_s={"fp32": 2 * cores * core_hz},
        memory_bandwidth_bytes_per_s=2 * memory_hz * bus_bytes,
        op_overhead_s=catalogue()["t4"].op_overhead_s,
        context_bytes=catalogue()["t4"].context_bytes,
    )
