"""Open stream of a rank at the arbiter."""

from __future__ import annotations

import asyncio
from collections import deque

from presage.collectives.arbiter.jobs import Job
from presage.collectives.arbiter.ranks.rank_entry import RankEntry
from presage.collectives.v1 import arbiter_pb2 as pb

_MOST_QUEUED = 64  # messages to a rank that does not read


class RankStream:
    """Open stream of one rank: messages to it, of which a slow reader loses the oldest."""

    def __init__(self, job: Job, rank: int, entry: RankEntry) -> None:
        self.job, self.rank, self.entry = job, rank, entry
        self._queue: deque[pb.ArbiterMessage] = deque(maxlen=_MOST_QUEUED)
        self._woken = asyncio.Event()
        self.is_closed = False

    def put(self, message: pb.ArbiterMessage) -> None:
        """Queue a message."""
        self._queue.append(message)
        self._woken.set()

    def close(self) -> None:
        """End the stream: another one has taken its place, or its job was replaced."""
        self.is_closed = True
        self._woken.set()

    async def next(self) -> pb.ArbiterMessage | None:
        """Wait for a message; return None at the end of the stream."""
        while not self._queue and not self.is_closed:
            self._woken.clear()
            await self._woken.wait()
        return None if self.is_closed else self._queue.popleft()
