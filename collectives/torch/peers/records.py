"""What a rank has learnt from its peers, apart from the state machine."""

from __future__ import annotations

from presage.collectives.torch.errors import unequal
from presage.collectives.torch.peers.messages import Ballot


class PeerRecords:
    """Votes, stalled AllReduces and goodbyes of the peers of a rank; the caller locks.

    Attributes
    ----------
    stalled : dict of int to (int, int)
        Order and size in bytes of the AllReduce that each rank waits for.
    left_at : dict of int to int
        Next number of each rank that leaves.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._ballots: dict[int, dict[int, Ballot]] = {}  # by number, then rank
        self.stalled: dict[int, tuple[int, int]] = {}
        self.left_at: dict[int, int] = {}

    def add_ballot(self, rank: int, ballot: Ballot) -> None:
        """Store a vote."""
        self._ballots.setdefault(ballot.vote.number, {})[rank] = ballot

    def ballots(self, number: int) -> dict[int, Ballot]:
        """Return the votes on an AllReduce, by rank."""
        return self._ballots.get(number, {})

    def take_ballots(self, number: int) -> dict[int, Ballot]:
        """Return the votes on an AllReduce, and release the memory of their sums."""
        return self._ballots.pop(number, {})

    def drop_before(self, number: int) -> None:
        """Remove votes on AllReduces that are over."""
        if self._ballots:
            self._ballots = {n: found for n, found in self._ballots.items() if n >= number}

    def check_votes(self, number: int, size_bytes: int) -> None:
        """Raise an error if the votes on an AllReduce have different sizes.

        Raises
        ------
        UnequalCallsError
            Some rank has another size.
        """
        sizes = {rank: ballot.size_bytes for rank, ballot in self.ballots(number).items()}
        self._compare(number, size_bytes, sizes)

    def check_stalled(self, order: int, size_bytes: int) -> None:
        """Raise an error if a peer waits for this AllReduce with another size.

        Raises
        ------
        UnequalCallsError
            Some rank has another size.
        """
        stalled = list(self.stalled.items())
        self._compare(
            order, size_bytes, {rank: size for rank, (at, size) in stalled if at == order}
        )

    def _compare(self, number: int, size_bytes: int, sizes: dict[int, int]) -> None:
        if set(sizes.values()) - {size_bytes}:
            calls = {**sizes, self._rank: size_bytes}
            raise unequal({rank: (number, size) for rank, size in calls.items()})
