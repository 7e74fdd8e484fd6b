"""Errors of collectives of the backend.

They are RuntimeErrors, as those of other backends, so that training loops handle them alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from presage.errors import PresageError


class CollectiveError(PresageError, RuntimeError):
    """A collective of this backend failed, and so do all later ones."""


class PeerLostError(CollectiveError):
    """Another rank ended while this one needed its vote."""


class UnequalCallsError(CollectiveError):
    """Ranks called AllReduces of different sizes, or in a different order."""


def unequal(calls: Mapping[int, tuple[int, int]]) -> UnequalCallsError:
    """Return the error for calls that differ over the ranks.

    Parameters
    ----------
    calls : Mapping of int to (int, int)
        Number of the AllReduce and its size in bytes at each known rank.
    """
    numbers = {number for number, _ in calls.values()}
    if len(numbers) == 1:
        listed = ", ".join(
            f"rank {rank}: {size} bytes" for rank, (_, size) in sorted(calls.items())
        )
        return UnequalCallsError(
            f"AllReduce {min(numbers)} has different sizes over the ranks: {listed}"
        )
    listed = ", ".join(
        f"rank {rank}: number {number} of {size} bytes"
        for rank, (number, size) in sorted(calls.items())
    )
    return UnequalCallsError(f"ranks are at different AllReduces: {listed}")
