"""Temperature and power of GPUs, from NVML."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from presage.schedulers.health.nvml_devices import nvml_devices

MOVED_C = 2.0  # change of a temperature that is reported for its own sake
MOVED_POWER, MOVED_W = 0.1, 5.0  # the same of power, relative and absolute: both must be reached
_SENSOR = 0  # NVML_TEMPERATURE_GPU
_MAX_C, _MAX_W = 1e3, 1e6  # larger values are no readings


class DeviceReading(NamedTuple):
    """Reading of a GPU.

    Attributes
    ----------
    temperature_c, power_w : float or None
        In degrees Celsius and watts; None if the GPU does not report it.
    """

    temperature_c: float | None = None
    power_w: float | None = None


def read_devices(nvml: Any) -> Mapping[str, DeviceReading]:
    """Return the readings of all GPUs by UUID, from NVML, which is initialized.

    A GPU whose handle cannot be had is left out.
    """
    found = {}
    for name, device in nvml_devices(nvml):
        temperature_c = _value(nvml, "nvmlDeviceGetTemperature", device, _SENSOR)
        power_mw = _value(nvml, "nvmlDeviceGetPowerUsage", device)
        power_w = None if power_mw is None else power_mw / 1e3
        found[name] = DeviceReading(known(temperature_c, _MAX_C), known(power_w, _MAX_W))
    return found


def _value(nvml: Any, function: str, *arguments: Any) -> float | None:
    """Return a value of the driver; None if the driver or its library does not have it."""
    read = getattr(nvml, function, None)
    try:
        return None if read is None else float(read(*arguments))
    except nvml.NVMLError:
        return None


def known(value: float | None, limit: float) -> float | None:
    """Return a value; None if it is negative, not finite or above a limit."""
    is_known = value is not None and math.isfinite(value) and 0 <= value <= limit
    return value if is_known else None


def reported(message: Any) -> DeviceReading:
    """Return the reading in a message with optional ``temperature_c`` and ``power_w``.

    Values that no GPU can have are None: the message may be of any agent.
    """
    return DeviceReading(
        known(message.temperature_c, _MAX_C) if message.HasField("temperature_c") else None,
        known(message.power_w, _MAX_W) if message.HasField("power_w") else None,
    )


def has_moved(before: DeviceReading, now: DeviceReading) -> bool:
    """Return whether a reading has changed so much that it is worth a report of its own."""
    return _has_moved(before.temperature_c, now.temperature_c, 0.0, MOVED_C) or _has_moved(
        before.power_w, now.power_w, MOVED_POWER, MOVED_W
    )


def _has_moved(before: float | None, now: float | None, relative: float, absolute: float) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) >= max(absolute, relative * before)
