"""Xid errors of NVIDIA's driver, in lines of the kernel log.

References
----------
docs.nvidia.com/deploy/xid-errors: formats of the lines, and immediate actions by code. A code whose
action is to restart the application is a notice; to reset the GPU, degraded; a code after which the
GPU cannot be used until it is reset, its node restarted or it is replaced, failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from presage.schedulers.health.health_signal import HealthSignal, Severity

XIDS: Mapping[int, tuple[Severity, str]] = MappingProxyType(
    {
        13: (Severity.NOTICE, "exception of an application"),
        31: (Severity.NOTICE, "memory page fault of an application"),
        43: (Severity.NOTICE, "an application stopped"),
        45: (Severity.NOTICE, "an application was cleaned up"),
        46: (Severity.FAILED, "the GPU stopped processing"),
        48: (Severity.DEGRADED, "uncorrectable memory error"),
        62: (Severity.FAILED, "halt of a microcontroller"),
        63: (Severity.DEGRADED, "a memory row or page is to be remapped"),
        64: (Severity.FAILED, "a memory row or page cannot be remapped"),
        74: (Severity.DEGRADED, "error of an NVLink"),
        79: (Severity.FAILED, "the GPU has fallen off the bus"),
        92: (Severity.NOTICE, "many corrected memory errors"),
        94: (Severity.DEGRADED, "contained memory error"),
        95: (Severity.FAILED, "uncontained memory error"),
        119: (Severity.FAILED, "timeout of the GPU system processor"),
        120: (Severity.FAILED, "error of the GPU system processor"),
        140: (Severity.FAILED, "unrecovered memory error"),
    }
)

_XID = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:]+)(?:\.\d)?\): (?P<code>\d{1,5}),")
_UUID = re.compile(r"NVRM: GPU at PCI:(?P<bus>[0-9a-fA-F:]+)(?:\.\d)?: (?P<uuid>GPU-[0-9a-fA-F-]+)")


class XidEvent(NamedTuple):
    """Xid error of a GPU, given by its PCI address."""

    bus: str
    code: int


def parse_xid(line: str) -> XidEvent | None:
    """Return the Xid error of a line of the kernel log; None for any other line."""
    found = _XID.search(line)
    return None if found is None else XidEvent(normal_bus(found["bus"]), int(found["code"]))


def xid_signals(lines: Iterable[str]) -> list[HealthSignal]:
    """Return the signals of a kernel log, in order.

    The driver names a GPU's UUID in a line before its first Xid error; without that line, the
    device of a signal is a PCI address.
    """
    uuids: dict[str, str] = {}
    signals = []
    for line in lines:
        if (named := _UUID.search(line)) is not None:
            uuids[normal_bus(named["bus"])] = named["uuid"]
        elif (event := parse_xid(line)) is not None:
            signals.append(xid_signal(uuids.get(event.bus, event.bus), event.code))
    return signals


def xid_signal(device: str, code: int) -> HealthSignal:
    """Return the signal of an Xid error; an unknown code is a notice."""
    severity, reason = XIDS.get(code, (Severity.NOTICE, "see NVIDIA's list of Xid errors"))
    return HealthSignal(device, "xid", severity, f"Xid {code}: {reason}")


def normal_bus(bus: str) -> str:
    """Return a PCI address as in the kernel log: a domain of four digits, no function."""
    domain, _, rest = bus.lower().partition(".")[0].partition(":")
    return f"{domain[-4:].zfill(4)}:{rest}"
