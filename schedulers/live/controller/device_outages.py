"""Journalled outages of the devices of a live cluster, by ids that outlast nodes and their names.

They follow from the journal's records: a lost node is an outage of each of its devices, until a
node reports the device again under any name. A failed device is an outage of this device. A drained
node that is lost is under maintenance and has not failed. A device that replaces another one has
another id and no history.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from presage.schedulers.core.failures.outage_history import OutageHistory

MAX_OUTAGES = 64  # of a device; older ones have no effect on its hazard
SYMPTOM_S = 3600.0  # within which the degraded signals of a device are one symptom


@dataclass(slots=True)
class DeviceOutages:
    """Outages and symptoms by device id.

    Attributes
    ----------
    spans : dict of str to list of [from_s, until_s]
        In order; ``until_s`` is None while the outage lasts.
    symptoms : dict of str to list of float
        Times at which a device was degraded. Each counts as a repair for its hazard.
    """

    spans: dict[str, list[list[float | None]]] = field(default_factory=dict)
    symptoms: dict[str, list[float]] = field(default_factory=dict)
    _history: OutageHistory | None = field(default=None, compare=False, repr=False)

    def fail(self, device_ids: Iterable[str], now_s: float) -> list[str]:
        """Begin the outages of devices that are up; return their ids."""
        changed = []
        for device_id in device_ids:
            if not self.is_down(device_id):
                found = self.spans.setdefault(device_id, [])
                found.append([now_s, None])
                del found[:-MAX_OUTAGES]
                changed.append(device_id)
                if self._history is not None:
                    self._history.record_failure(device_id, now_s)
        return changed

    def repair(self, device_ids: Iterable[str], now_s: float) -> list[str]:
        """End the outages of devices that are down; return their ids."""
        changed = []
        for device_id in device_ids:
            if self.is_down(device_id):
                self.spans[device_id][-1][1] = now_s
                changed.append(device_id)
                if self._history is not None:
                    self._history.record_repair(device_id, now_s)
        return changed

    def note_symptom(self, device_id: str, now_s: float) -> list[str]:
        """Note that a device is degraded; return its id, or nothing if that says nothing new.

        So it is for a device that is down, and within ``SYMPTOM_S`` of the last symptom.
        """
        found = self.symptoms.get(device_id, [])
        if self.is_down(device_id) or (found and now_s - found[-1] < SYMPTOM_S):
            return []
        self.symptoms[device_id] = [*found, now_s][-MAX_OUTAGES:]
        if self._history is not None:
            self._history.record_symptom(device_id, now_s)
        return [device_id]

    def is_down(self, device_id: str) -> bool:
        """Return whether a device is down."""
        found = self.spans.get(device_id)
        return bool(found and found[-1][1] is None)

    def history(self) -> OutageHistory:
        """Return the history for policies, in cluster time; it follows until the next call."""
        history = OutageHistory()
        record = (history.record_failure, history.record_repair, history.record_symptom)
        for at_s, _, kind, device_id in sorted(self._events()):
            record[kind](device_id, at_s)
        self._history = history
        return history

    def _events(self) -> Iterator[tuple[float, int, int, str]]:
        """Yield failures (0), repairs (1) and symptoms (2) with their times, in order."""
        for device_id, found in self.spans.items():
            for number, (from_s, until_s) in enumerate(found):
                yield from_s or 0.0, number, 0, device_id
                if until_s is not None and until_s < math.inf:
                    yield until_s, number, 1, device_id
        for device_id, times_s in self.symptoms.items():
            for at_s in times_s:
                yield at_s, MAX_OUTAGES, 2, device_id
