"""What found too few devices, so that whoever needs as much need not look."""

from __future__ import annotations

from presage.schedulers.policies.gang.candidates import Needs


class Unplaceable:
    """Of one decision, for as long as it gives nothing back."""

    def __init__(self) -> None:
        self._found: list[tuple[int, Needs]] = []

    def add(self, members: int, needs: Needs) -> None:
        """There are not enough devices with room for so many."""
        self._found = [one for one in self._found if one[0] < members or not _covers(one[1], needs)]
        self._found.append((members, needs))

    def for_more_than(self, members: int, needs: Needs) -> bool:
        """Whether so many, or fewer, that need no more anywhere found too few devices."""
        return any(members >= fewer and _covers(needs, less) for fewer, less in self._found)


def _covers(needs: Needs, less: Needs) -> bool:
    """Whether a job needs at least as much as another one on every kind that it can have."""
    for kind, (compute_milli, memory_bytes) in needs.items():
        of_kind = less.get(kind)
        if of_kind is None or compute_milli < of_kind[0] or memory_bytes < of_kind[1]:
            return False
    return True
