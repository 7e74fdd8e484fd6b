"""Devices of this machine that an agent can manage, as driver and kernel report them."""

from __future__ import annotations

import os
from typing import Any

from presage.errors import ConfigError
from presage.schedulers.live.agent.slot import Slot

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
HOST_STEP_BYTES, GPU_STEP_BYTES = 2**30, 2**28  # detected memory is rounded down to these


def detected_gpus(memory_bytes: int | None) -> tuple[Slot, ...]:
    """Return the GPUs that the driver shows and that this process may use.

    Raises
    ------
    ConfigError
        The package that asks the driver is not installed.
    """
    try:
        import pynvml
    except ModuleNotFoundError:
        raise ConfigError(
            "the package 'pynvml' is not installed, which detects GPUs; pip install "
            "'presage[cluster]'"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, or no GPU
        return ()
    try:
        found = (_gpu(pynvml, i, memory_bytes) for i in range(pynvml.nvmlDeviceGetCount()))
        return tuple(slot for slot in found if slot is not None)
    finally:
        pynvml.nvmlShutdown()


def _gpu(driver: Any, number: int, memory_bytes: int | None) -> Slot | None:
    from presage.features.device.device import device_kind

    handle = driver.nvmlDeviceGetHandleByIndex(number)
    uuid = str(driver.nvmlDeviceGetUUID(handle))
    if not _is_visible(number, uuid):
        return None
    name = str(driver.nvmlDeviceGetName(handle))
    total = _rounded(int(driver.nvmlDeviceGetMemoryInfo(handle).total), GPU_STEP_BYTES)
    return Slot(
        device_kind(name) or name, memory_bytes or total, cuda=number, device_id=uuid,
        pci_address=_pci_address(driver, handle),
    )  # fmt: skip


def _pci_address(driver: Any, handle: Any) -> str:
    """Return the PCI address of a GPU as in the kernel log; "" if the driver does not report it."""
    from presage.schedulers.health.xid import normal_bus

    try:
        found = driver.nvmlDeviceGetPciInfo(handle).busId
    except driver.NVMLError:
        return ""
    return normal_bus(found.decode() if isinstance(found, bytes) else str(found))


def _is_visible(number: int, uuid: str) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES lets this process use a GPU."""
    listed = os.environ.get(VISIBLE_GPUS)
    return listed is None or not {str(number), uuid}.isdisjoint(listed.split(","))


def host_bytes() -> int:
    """Return the memory of this machine, rounded down."""
    return _rounded(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), HOST_STEP_BYTES)


def _rounded(found_bytes: int, step_bytes: int) -> int:
    """Round down, so that devices of a kind are equal: kernels and drivers reserve a little."""
    return found_bytes // step_bytes * step_bytes or found_bytes
