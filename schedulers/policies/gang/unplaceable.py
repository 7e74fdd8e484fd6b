"""Cache of demands for which a decision found too few devices."""

from __future__ import annotations

from presage.schedulers.policies.gang.candidates import Needs


class Unplaceable:
    """Demands that do not fit; valid for one decision, until it frees devices."""

    def __init__(self) -> None:
        self._found: list[tuple[int, Needs]] = []

    def add(self, members: int, needs: Needs) -> None:
        """Add a demand of a number of members for which too few devices have capacity."""
        self._found = [
            (size, other)
            for size, other in self._found
            if size < members or not _covers(other, needs)
        ]
        self._found.append((members, needs))

    def for_more_than(self, members: int, needs: Needs) -> bool:
        """Return whether a demand that is no larger was found not to fit."""
        return any(members >= fewer and _covers(needs, less) for fewer, less in self._found)


def _covers(needs: Needs, less: Needs) -> bool:
    """Return whether a job needs at least as much as another one on every kind that it allows."""
    for kind, (compute_milli, memory_bytes) in needs.items():
        of_kind = less.get(kind)
        if of_kind is None or compute_milli < of_kind[0] or memory_bytes < of_kind[1]:
            return False
    return True
