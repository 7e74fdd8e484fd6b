"""What the gate keeps in annotations: the API server is its only memory, so it may die at any time.

One that cannot be read is as none: it was not the gate that wrote it.
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
    """Where the members of a gang that was started are to be.

    Attributes
    ----------
    devices : mapping of str to str
        By the uid of each pod, as :func:`device_names` writes them; "" of a pod without any.
    bind_by_s : float or None
        Until when a quorum of them has to be bound, in seconds since 1970; None while it is.
    taken_back : bool
        Whether the plan came to nothing: its pods are being deleted.
    succeeded : tuple of str
        Uids of its pods that have done what they had to, and may be gone.
    """

    devices: Mapping[str, str] = field(default_factory=dict)
    bind_by_s: float | None = None
    taken_back: bool = False
    succeeded: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As an annotation."""
        by = None if self.bind_by_s is None else moment(self.bind_by_s)
        content = {"pods": dict(self.devices), "bindBy": by, "takenBack": self.taken_back}
        return _text({**content, "succeeded": list(self.succeeded)})

    @classmethod
    @lru_cache(maxsize=4096)  # of every gang that runs, at every look
    def from_json(cls, text: str) -> Plan | None:
        """Of an annotation; None of "", and of what is no plan."""
        try:
            given = json.loads(text)
            by = given["bindBy"]
            return cls(
                {str(uid): str(devices) for uid, devices in given["pods"].items()},
                None if by is None else seconds(by),
                given["takenBack"] is True,
                tuple(str(uid) for uid in given.get("succeeded", ())),
            )
        except _UNREADABLE:
            return None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices that a gang keeps from others until it has enough."""

    devices: str
    until_s: float

    def to_json(self) -> str:
        """As an annotation."""
        return _text({"devices": self.devices, "until": moment(self.until_s)})

    @classmethod
    def from_json(cls, text: str) -> Reservation | None:
        """Of an annotation; None of "", and of what is no reservation."""
        try:
            given = json.loads(text)
            return cls(str(given["devices"]), seconds(given["until"]))
        except _UNREADABLE:
            return None


@dataclass(frozen=True, slots=True)
class RolledBack:
    """How often a gang came to nothing, and when last."""

    times: int = 0
    at_s: float = 0.0

    def to_json(self) -> str:
        """As an annotation."""
        return _text({"times": self.times, "at": moment(self.at_s)})

    @classmethod
    def from_json(cls, text: str) -> RolledBack:
        """Of an annotation; never, of "" and of what is none."""
        try:
            given = json.loads(text)
            return cls(max(0, int(given["times"])), seconds(given["at"]))
        except _UNREADABLE:
            return cls()


_UNREADABLE = (
    ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
_DEVICE = re.compile(r"(.+)/([0-9]{1,9})")


def device_names(devices: Iterable[tuple[str, int]]) -> str:
    """Of nodes and the numbers of their devices: "n0/0,n0/1"."""
    return ",".join(f"{node}/{number}" for node, number in devices)


def devices_named(text: str) -> list[tuple[str, int]]:
    """What :func:`device_names` wrote; what is no device is left out."""
    found = []
    for part in text.split(","):
        device = _DEVICE.fullmatch(part)
        if device is not None:
            found.append((device[1], int(device[2])))
    return found


def moment(at_s: float) -> str:
    """A time in seconds since 1970, as Kubernetes writes times."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def seconds(text: str) -> float:
    """A time as Kubernetes writes it, in seconds since 1970.

    Raises
    ------
    ValueError
        It is none.
    """
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return at.timestamp()


def seconds_or_none(text: str) -> float | None:
    """The same; None of what is no time."""
    try:
        return seconds(text)
    except ValueError:
        return None


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), sort_keys=True)
