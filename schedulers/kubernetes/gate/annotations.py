"""State of the gate, kept in annotations: the gate may restart at any time without losing it.

An annotation that cannot be parsed was not written by the gate, and counts as absent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Plan:
    """Planned devices of the pods of a gang.

    Attributes
    ----------
    devices : mapping of str to str
        By pod uid, as :func:`format_devices` writes them; "" for a pod without devices.
    bind_deadline_s : float or None
        Time by which a quorum must be bound, in seconds since 1970; None while it is bound.
    is_rolled_back : bool
        Whether the plan has failed; its pods are being deleted.
    succeeded : tuple of str
        Uids of pods that have succeeded, including deleted ones.
    """

    devices: Mapping[str, str] = field(default_factory=dict)
    bind_deadline_s: float | None = None
    is_rolled_back: bool = False
    succeeded: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the text of the annotation."""
        deadline = None if self.bind_deadline_s is None else format_time(self.bind_deadline_s)
        content = {
            "pods": dict(self.devices),
            "bindDeadline": deadline,
            "rolledBack": self.is_rolled_back,
        }
        return _to_json({**content, "succeeded": list(self.succeeded)})

    @classmethod
    @lru_cache(maxsize=4096)  # every pass parses the plan of every running gang
    def from_json(cls, text: str) -> Plan | None:
        """Parse an annotation; return None if it is empty or invalid."""
        try:
            content = json.loads(text)
            deadline = content["bindDeadline"]
            return cls(
                {str(uid): str(devices) for uid, devices in content["pods"].items()},
                None if deadline is None else parse_time(deadline),
                content["rolledBack"] is True,
                tuple(str(uid) for uid in content.get("succeeded", ())),
            )
        except _PARSE_ERRORS:
            return None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices reserved for a gang that does not yet have enough of them."""

    devices: str
    until_s: float

    def to_json(self) -> str:
        """Return the text of the annotation."""
        return _to_json({"devices": self.devices, "until": format_time(self.until_s)})

    @classmethod
    def from_json(cls, text: str) -> Reservation | None:
        """Parse an annotation; return None if it is empty or invalid."""
        try:
            content = json.loads(text)
            return cls(str(content["devices"]), parse_time(content["until"]))
        except _PARSE_ERRORS:
            return None


@dataclass(frozen=True, slots=True)
class Rollbacks:
    """Number of rollbacks of a gang, and the time of the last one in seconds since 1970."""

    count: int = 0
    last_s: float = 0.0

    def to_json(self) -> str:
        """Return the text of the annotation."""
        return _to_json({"count": self.count, "last": format_time(self.last_s)})

    @classmethod
    def from_json(cls, text: str) -> Rollbacks:
        """Parse an annotation; return no rollbacks if it is empty or invalid."""
        try:
            content = json.loads(text)
            return cls(max(0, int(content["count"])), parse_time(content["last"]))
        except _PARSE_ERRORS:
            return cls()


_PARSE_ERRORS = (
    ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
_DEVICE = re.compile(r"(.+)/([0-9]{1,9})")


def format_devices(devices: Iterable[tuple[str, int]]) -> str:
    """Format pairs of node and device number, as in "n0/0,n0/1"."""
    return ",".join(f"{node}/{number}" for node, number in devices)


def parse_devices(text: str) -> list[tuple[str, int]]:
    """Parse the output of :func:`format_devices`; skip invalid parts."""
    found = []
    for part in text.split(","):
        device = _DEVICE.fullmatch(part)
        if device is not None:
            found.append((device[1], int(device[2])))
    return found


def format_time(at_s: float) -> str:
    """Format a time, in seconds since 1970, as a Kubernetes MicroTime."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def parse_time(text: str) -> float:
    """Parse a time as Kubernetes writes it; return seconds since 1970.

    Raises
    ------
    ValueError
        The text is not a time, or has no time zone.
    """
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return at.timestamp()


def parse_time_or_none(text: str) -> float | None:
    """Parse a time as :func:`parse_time`; return None if it is invalid."""
    try:
        return parse_time(text)
    except ValueError:
        return None


def _to_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), sort_keys=True)
