"""GPUs as NVML lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def nvml_devices(nvml: Any) -> Iterator[tuple[str, Any]]:
    """Yield the UUID and the handle of each GPU, from NVML, which is initialized.

    A GPU whose handle cannot be had is left out.
    """
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(device)
        except nvml.NVMLError:
            continue
        yield uuid.decode() if isinstance(uuid, bytes) else uuid, device
