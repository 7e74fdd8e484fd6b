"""What found too few devices, so that whoever needs as much need not look."""

from __future__ import annotations

from presage.schedulers.gang.candidates import Needs


class NoRoom:
    """Of one decision, for as long as it gives nothing back."""

    def __init__(self) -> None:
        self._found: list[tuple[int, Needs]] = []

    def add(self, members: int, needs: Needs) -> None:
        """There are not enough devices with room for so many."""
        larger = [one for one in self._found if _covers(one, members, needs)]
        self._found = [one for one in self._found if one not in larger]
        self._found.append((members, needs))

    def for_more_than(self, members: int, needs: Needs) -> bool:
        """Whether so many, or fewer, that need no more anywhere found too few devices."""
        asked = members, needs
        return any(_covers(asked, *one) for one in self._found)


def _covers(one: tuple[int, Needs], members: int, needs: Needs) -> bool:
    """Whether a request is at least as large as another one on every kind that it can have."""
    return one[0] >= members and all(
        kind in needs and compute_milli >= needs[kind][0] and memory_bytes >= needs[kind][1]
        for kind, (compute_milli, memory_bytes) in one[1].items()
    )
