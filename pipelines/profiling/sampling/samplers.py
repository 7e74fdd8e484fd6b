"""The sampler of each kind of device."""

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
    """Whether jobs run by CUDA on it."""
    return device.compute_capability > 0


def make_sampler(device: Device, *, memory_before_bytes: int | None = None) -> Sampler:
    """The sampler for that device.

    Parameters
    ----------
    memory_before_bytes : int or None
        What :func:`memory_in_use_bytes` said before a run's one member started. Where the driver
        keeps process ids to itself, as in a container, the member's memory is what came on top.

    Raises
    ------
    ProfilingError
        It is a GPU, and its driver does not answer any more.
    """
    if not is_gpu(device):
        return CpuSampler()
    from presage.pipelines.profiling.sampling.nvml_sampler import NvmlSampler

    return NvmlSampler(memory_before_bytes=memory_before_bytes)


def memory_in_use_bytes(device: Device) -> int | None:
    """Memory of a GPU that is taken now, by anyone; None on a CPU, or where the driver is silent.

    Raises
    ------
    ProfilingError
        The driver does not answer any more.
    """
    if not is_gpu(device):
        return None
    from presage.pipelines.profiling.sampling.nvml_device import NvmlDevice

    return NvmlDevice().memory_used_bytes()


def require_driver(device: Device) -> None:
    """Make sure that a job which crashed did so by itself: its GPU is still there.

    Raises
    ------
    ProfilingError
        The driver does not answer any more.
    """
    memory_in_use_bytes(device)
