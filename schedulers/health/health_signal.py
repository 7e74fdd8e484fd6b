"""Health signal: what a driver, a kernel log or a monitor says about a device or node."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """Effect on scheduling: note it, avoid the device, treat it as failed, or as repaired."""

    NOTICE = "notice"
    DEGRADED = "degraded"
    FAILED = "failed"
    HEALTHY = "healthy"  # an earlier failure, by the same source, is over


class HealthSignal(NamedTuple):
    """One statement about a device or a node.

    Attributes
    ----------
    device : str
        UUID, PCI address ("0000:3b:00") or number ("#0") of the device; "" for the whole node.
    source : str
        "xid", "ecc", "rows", "condition" or "taint".
    severity : Severity
    reason : str
        In a few words.
    """

    device: str
    source: str
    severity: Severity
    reason: str
