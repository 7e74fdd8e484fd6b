"""Open streams of all ranks, and the delivery of messages to them."""

from __future__ import annotations

from typing import TypeAlias

from presage.collectives.arbiter.domain import Domain
from presage.collectives.arbiter.jobs import Job
from presage.collectives.arbiter.ranks.rank_stream import RankStream
from presage.collectives.arbiter.wire import to_rank
from presage.collectives.core.messages import Abort, Prepare, Update, ViewUpdate
from presage.collectives.v1 import arbiter_pb2 as pb

MessageToRank: TypeAlias = ViewUpdate | Prepare | Update | Abort


class RankStreams:
    """Open streams by job and rank; at most one of each rank."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, int], RankStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: RankStream) -> None:
        """Add a stream, and close the one whose place it takes."""
        key = (stream.job.name, stream.rank)
        if (old := self._streams.get(key)) is not None:
            old.close()
        self._streams[key] = stream

    def remove(self, stream: RankStream) -> None:
        """Remove a stream, unless another one has taken its place."""
        if self._streams.get((stream.job.name, stream.rank)) is stream:
            del self._streams[stream.job.name, stream.rank]

    def close_job(self, job: Job) -> None:
        """Close the streams of a job whose name another one has taken."""
        for rank in job.ranks:
            stream = self._streams.get((job.name, rank))
            if stream is not None and stream.job is job:
                stream.close()
                del self._streams[job.name, rank]

    def send_switches(self, job: Job, domain: Domain) -> None:
        """Send the addresses of its switches to all connected ranks of a job."""
        specs = [domain[name] for name in job.switches]
        registered = pb.Registered(
            switches=[
                pb.Switch(name=s.name, host=s.host, port=s.port, token=s.token, epoch=job.epoch)
                for s in specs
            ]
        )
        for rank in job.ranks:
            if (stream := self._streams.get((job.name, rank))) is not None:
                stream.put(pb.ArbiterMessage(registered=registered))

    def send(self, message: MessageToRank) -> None:
        """Send a message of the controller to its rank, if the rank is connected."""
        stream = self._streams.get((message.job, message.rank))
        if stream is None or stream.is_closed or not stream.job.was_member:
            return  # the controller's record is of an ended job of that name
        if isinstance(message, ViewUpdate) and stream.job.views:
            # Ranks of the job may have views of an earlier membership, each its own ones.
            views = {**stream.job.views, **{view.epoch: view for view in message.views}}
            message = message._replace(views=tuple(views[epoch] for epoch in sorted(views)))
        stream.put(to_rank(message))
