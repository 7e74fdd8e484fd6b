"""Selection of the sampler for a kind of device."""

from __future__ import annotations

from presage.features.device.device import Device
from presage.pipelines.profiling.sampling.cpu_sampler import CpuSampler
from presage.pipelines.profiling.sampling.device_sample import DeviceSample, Sampler

__all__ = [
    "CpuSampler",
    "DeviceSample",
    "Sampler",
    "is_gpu",
    "make_sampler",
    "memory_in_use_bytes",
    "require_driver",
]


def is_gpu(device: Device) -> bool:
    """Return whether jobs use CUDA on the device."""
    return device.compute_capability > 0


def make_sampler(device: Device, *, memory_before_bytes: int | None = None) -> Sampler:
    """Create the sampler for a device.

    Parameters
    ----------
    memory_before_bytes : int or None
        Result of :func:`memory_in_use_bytes` before a run's only member started. If the driver
        does not report process ids, as in a container, the member's memory is the increase.

    Raises
    ------
    ProfilingError
        The device is a GPU whose driver does not respond any more.
    """
    if not is_gpu(device):
        return CpuSampler()
    from presage.pipelines.profiling.sampling.nvml_sampler import NvmlSampler

    return NvmlSampler(memory_before_bytes=memory_before_bytes)


def memory_in_use_bytes(device: Device) -> int | None:
    """Return the GPU memory in use by all processes; None on a CPU, or if it is not reported.

    Raises
    ------
    ProfilingError
        The driver does not respond any more.
    """
    if not is_gpu(device):
        return None
    from presage.pipelines.profiling.sampling.nvml_device import NvmlDevice

    return NvmlDevice().memory_used_bytes()


def require_driver(device: Device) -> None:
    """Check that the GPU is still available, so that a crash is the job's own.

    Raises
    ------
    ProfilingError
        The driver does not respond any more.
    """
    memory_in_use_bytes(device)
