"""Journalled outages of the devices of a live cluster, by ids that outlast nodes and their names.

They follow from the records ``NodeLost`` and ``NodeJoined``: a lost node is an outage of each of
its devices, until a node reports the device again under any name. A drained node that is lost is
under maintenance and has not failed. A device that replaces another one has another id and no
history.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from presage.schedulers.core.failures.outage_history import OutageHistory

MAX_OUTAGES = 64  # of a device; older ones have no effect on its hazard


@dataclass(slots=True)
class DeviceOutages:
    """Outages by device id.

    Attributes
    ----------
    spans : dict of str to list of [from_s, until_s]
        In order; ``until_s`` is None while the outage lasts.
    """

    spans: dict[str, list[list[float | None]]] = field(default_factory=dict)

    def fail(self, device_ids: Iterable[str], now_s: float) -> list[str]:
        """Begin the outages of devices that are up; return their ids."""
        changed = []
        for device_id in device_ids:
            found = self.spans.setdefault(device_id, [])
            if not found or found[-1][1] is not None:
                found.append([now_s, None])
                del found[:-MAX_OUTAGES]
                changed.append(device_id)
        return changed

    def repair(self, device_ids: Iterable[str], now_s: float) -> list[str]:
        """End the outages of devices that are down; return their ids."""
        changed = []
        for device_id in device_ids:
            found = self.spans.get(device_id)
            if found and found[-1][1] is None:
                found[-1][1] = now_s
                changed.append(device_id)
        return changed

    def history(self) -> OutageHistory:
        """Return the history for policies, in cluster time."""
        events = sorted(
            event
            for device_id, found in self.spans.items()
            for from_s, until_s in found
            for event in _events(device_id, from_s, until_s)
        )
        history = OutageHistory()
        for at_s, is_repair, device_id in events:
            record = history.record_repair if is_repair else history.record_failure
            record(device_id, at_s)
        return history


def _events(
    device_id: str, from_s: float | None, until_s: float | None
) -> Iterable[tuple[float, bool, str]]:
    yield from_s or 0.0, False, device_id
    if until_s is not None and until_s < math.inf:
        yield until_s, True, device_id
