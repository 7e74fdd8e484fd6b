"""Health signals of a node's devices, from their sources until the controller has recorded them.

Pure: reads no clock and does no I/O. Its size is limited, whatever the sources contain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from presage.schedulers.health.health_signal import HealthSignal, Severity
from presage.schedulers.health.memory_health import MemoryHealth, memory_signals
from presage.schedulers.live.agent.slot import Slot
from presage.schedulers.v1 import cluster_pb2 as pb

MAX_PENDING = 64  # signals that are not recorded yet; less severe ones give way
REPEAT_S = 10.0  # within which the same signal of a device is reported once
_MAX_KNOWN = 1024  # signals that are kept to find repeats, and unknown devices
_ORDER = (Severity.NOTICE, Severity.DEGRADED, Severity.HEALTHY, Severity.FAILED)


class HealthCore:
    """Queue of the health signals of a node.

    Parameters
    ----------
    slots : sequence of Slot
        Devices of the node.
    signals_id : str
        Id of the sequence of numbers; a new one for each queue.

    Attributes
    ----------
    pending : list of HealthSignal message
        Signals to report, in the order of their numbers.
    last_number : int
        Number of the last signal so far.
    """

    def __init__(self, slots: Sequence[Slot], signals_id: str) -> None:
        self.signals_id = signals_id
        self._devices = {
            name: number
            for number, slot in enumerate(slots)
            for name in (slot.device_id, slot.pci_address)
            if name
        }
        self._gpus = [slot.device_id for slot in slots if slot.cuda is not None and slot.device_id]
        self._memory: dict[str, MemoryHealth] = {}
        self._listed = set(self._gpus)  # GPUs in the last reading
        self._failed = set(self._gpus)  # GPUs that may be recorded as failed by the driver
        self._driver_signals: frozenset[HealthSignal] = frozenset()  # of the last reading
        self.pending: list[pb.HealthSignal] = []
        self.last_number = 0
        self._noted_s: dict[tuple[int, HealthSignal], float] = {}
        self._unknown: set[str] = set()

    def note(self, signals: Iterable[HealthSignal], now_s: float) -> list[str]:
        """Add signals to the queue; return devices that are not of this node, each only once."""
        unknown = []
        for signal in signals:
            device = self._devices.get(signal.device)
            if device is not None:
                self._add(device, signal, now_s)
            elif signal.device not in self._unknown and len(self._unknown) < _MAX_KNOWN:
                self._unknown.add(signal.device)
                unknown.append(signal.device)
        return unknown

    def note_reading(self, reading: Iterable[MemoryHealth], now_s: float) -> None:
        """Add the signals that follow from a reading of the driver.

        A GPU that two readings do not contain has failed. What the driver reports on and on is
        reported when it begins. A GPU that it reports as failed no more is healthy, and so are all
        without a failure at the first reading: an earlier agent may have reported them.
        """
        now = {one.uuid: one for one in reading if one.uuid in self._gpus}
        listed = set(now)
        if not self._memory:
            self._memory = {uuid: now.get(uuid, MemoryHealth(uuid)) for uuid in self._gpus}
        for uuid in self._listed - listed:  # it may be missing by chance
            now[uuid] = self._memory[uuid]
        found = memory_signals(list(self._memory.values()), list(now.values()))
        failed = {one.device for one in found if one.severity is Severity.FAILED}
        reason = "the driver lists the GPU without a failure"
        healthy = [
            HealthSignal(uuid, "rows", Severity.HEALTHY, reason)
            for uuid in sorted(self._failed & listed - failed)
        ]
        before, self._driver_signals = self._driver_signals, frozenset(found)
        self.note([one for one in (*healthy, *found) if one not in before], now_s)
        self._memory.update(now)
        self._failed, self._listed = failed | (self._failed - listed), listed

    def acknowledge(self, signals_id: str, number: int) -> None:
        """Remove the signals up to a number, which the controller has recorded."""
        if signals_id == self.signals_id:
            self.pending = [one for one in self.pending if one.number > number]

    def _add(self, device: int, signal: HealthSignal, now_s: float) -> None:
        key = device, signal._replace(device="")
        if now_s - self._noted_s.get(key, -math.inf) < REPEAT_S:
            return
        if len(self.pending) >= MAX_PENDING and not self._drop_below(signal.severity):
            return
        self._noted_s.pop(key, None)  # the oldest are at the front
        self._noted_s[key] = now_s
        if len(self._noted_s) > _MAX_KNOWN:
            del self._noted_s[next(iter(self._noted_s))]
        self.last_number += 1
        self.pending.append(
            pb.HealthSignal(
                number=self.last_number, device=device, source=signal.source,
                severity=signal.severity, reason=signal.reason,
            )
        )  # fmt: skip

    def _drop_below(self, severity: Severity) -> bool:
        """Remove the first pending signal that is less severe; return whether there was one."""
        for position, one in enumerate(self.pending):
            if _ORDER.index(Severity(one.severity)) < _ORDER.index(severity):
                del self.pending[position]
                return True
        return False
