"""Jobs of a domain, as their ranks register; every value is checked here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from presage.collectives.arbiter.ranks.rank_entry import RankEntry, Rhythm
from presage.collectives.arbiter.wire import MAX_EPOCH, view_from_wire
from presage.collectives.core.costs import Link
from presage.collectives.core.demand import Call, JobDemand
from presage.collectives.core.view import JobView
from presage.collectives.switch.protocol import TOKEN_BYTES, is_name
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.errors import InvalidRequestError, OverloadedError, RefusedAgentError

MAX_RANKS = 1024
MAX_NODE = 128  # characters
MAX_VIEW_BYTES = 4 << 20  # of all jobs, since each save writes them
MAX_JOB_VIEW_BYTES = 1 << 20
_VIEW_OVERHEAD = 64  # bytes of a view without decisions
MOST_GAP = 1 << 32  # of epochs, that a rank may be ahead after a journal was lost


@dataclass(slots=True)
class Job:
    """Job with its registered ranks.

    Attributes
    ----------
    name, size : str, int
        Name, and number of ranks.
    token : bytes
        SHA-256 of its token.
    epoch : int
        Epoch that its ranks register with at the switches.
    switches : tuple of str
        Its switches, the topmost one first; () until all ranks are registered.
    is_member : bool
        Whether the controller has decisions for it, or is about to.
    was_member : bool
        Whether it has been a member: a record of the controller with its name is then its own, and
        not that of an ended job.
    since_s : float
        Time of its first registration, or of the start of this arbiter.
    progress_s : float
        Time at which ``started`` last rose.
    idle_at : int
        ``started`` when it was taken out of the decisions; it comes back when it goes on.
    back_s : float
        Earliest time of that.
    saved_s, saved_calls : float, int
        Predicted time that switches have saved, and the AllReduces that it is counted for.
    largest_bytes : int
        Size of the largest AllReduce that its ranks have reported as ended.
    views : dict of int to JobView
        Views of earlier memberships that a rank may still have, by epoch.
    """

    name: str
    size: int
    token: bytes
    epoch: int
    switches: tuple[str, ...] = ()
    is_member: bool = False
    was_member: bool = False
    since_s: float = 0.0
    progress_s: float = 0.0
    idle_at: int = -1
    back_s: float = 0.0
    saved_s: float = 0.0
    saved_calls: int = 0
    largest_bytes: int = 0
    ranks: dict[int, RankEntry] = field(default_factory=dict)
    views: dict[int, JobView] = field(default_factory=dict)

    @property
    def started(self) -> int:
        """Number of the last AllReduce that all ranks have started; -1 for none."""
        if len(self.ranks) < self.size:
            return -1
        return min(rank.started for rank in self.ranks.values())

    @property
    def connected(self) -> int:
        """Number of ranks with an open stream."""
        return sum(rank.gone_s is None for rank in self.ranks.values())

    @property
    def is_complete(self) -> bool:
        """Whether all ranks have registered, and none has left."""
        return len(self.ranks) == self.size and not any(r.has_left for r in self.ranks.values())

    def is_lost(self, now_s: float, lease_s: float) -> bool:
        """Return whether a rank has left, or its stream has been closed for the lease."""
        return any(
            rank.has_left or (rank.gone_s is not None and now_s - rank.gone_s >= lease_s)
            for rank in self.ranks.values()
        )

    def is_over(self, now_s: float, lease_s: float) -> bool:
        """Return whether all ranks have left, or none was connected for the lease."""
        if self.ranks and all(rank.has_left for rank in self.ranks.values()):
            return True
        gone = [rank.gone_s for rank in self.ranks.values() if rank.gone_s is not None]
        return self.connected == 0 and now_s - max([self.since_s, *gone]) >= lease_s

    def forget_views(self, epoch: int) -> None:
        """Forget views before an epoch that the job has adopted."""
        self.views = {e: view for e, view in self.views.items() if e >= epoch}

    def demand(self, link: Link) -> tuple[JobDemand, str]:
        """Return the demand of a complete job, and why it cannot be predicted, "" if it can.

        The rhythm is that of the rank with the fewest AllReduces in an iteration, the lowest of
        them, with the median of the periods. A rank that learns from noisy times may take several
        iterations for one. Without a rhythm the demand is one AllReduce of the largest known size.
        """
        rhythms = {n: r.rhythm for n, r in sorted(self.ranks.items()) if r.rhythm is not None}
        problem = _disagreement(rhythms)
        if not rhythms or problem:
            first = min(self.ranks)
            problem = problem or f"rank {first}: {self.ranks[first].problem}"
            sizes = [c.size_bytes for r in rhythms.values() for c in r.calls]
            call = Call(0.0, max([self.largest_bytes, *sizes]))
            return JobDemand(self.name, self.size, self.switches, link, math.nan, (call,)), problem
        shortest = _shortest(rhythms)
        calls = len(shortest.calls)
        return JobDemand(
            self.name,
            self.size,
            self.switches,
            link,
            statistics.median(r.period_s * calls / len(r.calls) for r in rhythms.values()),
            shortest.calls,
            shortest.anchor_number,
            shortest.anchor_s,
            max(rhythm.margin_s for rhythm in rhythms.values()),
        ), ""


def _disagreement(rhythms: Mapping[int, Rhythm]) -> str:
    """Return in which way the ranks' reports differ; "" if they agree."""
    if not rhythms:
        return ""
    shortest = _shortest(rhythms)
    sizes = [call.size_bytes for call in shortest.calls]
    for number, rhythm in rhythms.items():
        times = len(rhythm.calls) // len(sizes)
        if [call.size_bytes for call in rhythm.calls] != sizes * times:
            first = next(n for n, found in rhythms.items() if found is shortest)
            return f"ranks {first} and {number} report other sizes or numbers of AllReduces"
    return ""


def _shortest(rhythms: Mapping[int, Rhythm]) -> Rhythm:
    """Return the rhythm with the fewest AllReduces in an iteration, of the lowest rank."""
    return min(rhythms.values(), key=lambda rhythm: len(rhythm.calls))


def check_registration(message: pb.Registration) -> None:
    """Raise InvalidRequestError unless there can be such a rank."""
    if not is_name(message.job.encode()):
        raise InvalidRequestError(
            "the name of the job must have 1 to 64 letters, digits and ._:/-; rename the job"
        )
    if not 1 <= message.ranks <= MAX_RANKS or message.rank >= message.ranks:
        raise InvalidRequestError(
            f"job {message.job!r}: rank {message.rank} of {message.ranks}; use 0 to N - 1, and at "
            f"most {MAX_RANKS} ranks"
        )
    if len(message.job_token_sha256) != TOKEN_BYTES or not 0 < len(message.instance) <= 64:
        raise InvalidRequestError(f"job {message.job!r}: the token or the instance is malformed")
    if len(message.node) > MAX_NODE or not message.node.isprintable():
        raise InvalidRequestError(f"job {message.job!r}: the node must have printable characters")


def check_epochs(message: pb.Registration, newest: int) -> tuple[JobView, ...]:
    """Return the views of a rank; raise InvalidRequestError if one cannot be this arbiter's.

    ``newest`` is the newest epoch of the controller. An arbiter that has lost its journal can be
    behind its ranks, but never by as much as a forged epoch.
    """
    views = tuple(view_from_wire(view) for view in message.views)
    claimed = max([message.newest_epoch, *(view.epoch for view in views)])
    if claimed > min(newest + MOST_GAP, MAX_EPOCH // 2):
        raise InvalidRequestError(
            f"job {message.job!r}: epoch {claimed} was never published; the newest is {newest}"
        )
    return views


class Jobs:
    """Jobs by name, and the rules by which a rank is accepted.

    Parameters
    ----------
    max_jobs : int
        Greatest number of jobs.
    lease_s : float
        Time after which a rank without a stream is lost.
    """

    def __init__(self, max_jobs: int, lease_s: float) -> None:
        self.by_name: dict[str, Job] = {}
        self._max_jobs, self._lease_s = max_jobs, lease_s

    def check_views(self, name: str, views: Iterable[JobView]) -> None:
        """Check that the views of a rank fit into the state of the arbiter.

        Raises
        ------
        InvalidRequestError
            The job would have too many.
        OverloadedError
            All jobs together would.
        """
        kept = {job.name: _view_bytes(job.views) for job in self.by_name.values()}
        own = self.by_name[name].views if name in self.by_name else {}
        size = _view_bytes(own | {view.epoch: view for view in views})
        if size > MAX_JOB_VIEW_BYTES:
            raise InvalidRequestError(f"job {name!r}: its ranks have too many views")
        if size > kept.get(name, 0) and sum((kept | {name: size}).values()) > MAX_VIEW_BYTES:
            raise OverloadedError(
                f"job {name!r}: the jobs of this arbiter have too many views; try again when "
                "others have ended",
                retry_after_s=5.0,
            )

    def register(self, message: pb.Registration, now_s: float, epoch: int) -> Job:
        """Add a rank, and return its job.

        A process that takes the place of another one of its job begins a new job.

        Raises
        ------
        RefusedAgentError
            Another job has the name, or the ranks disagree on their number.
        OverloadedError
            There are too many jobs.
        """
        job = self.by_name.get(message.job)
        if job is not None and self._is_replaced(job, message, now_s):
            job = None
        if job is None:
            job = self._new_job(message, now_s, epoch)
        before = job.ranks.get(message.rank)
        entry = RankEntry(message.instance, message.node)
        if before is not None:
            entry.started, entry.counts = before.started, before.counts
        job.ranks[message.rank] = entry
        job.progress_s = now_s
        return job

    def _is_replaced(self, job: Job, message: pb.Registration, now_s: float) -> bool:
        """Return whether the registration is of a new job with the name of one that has ended."""
        before = job.ranks.get(message.rank)
        is_over = job.is_over(now_s, self._lease_s)
        is_same_token = job.token == message.job_token_sha256
        if not is_same_token and not is_over:
            raise RefusedAgentError(
                f"another job has the name {job.name!r}; rename this one, or wait until it ends"
            )
        if message.ranks != job.size and not is_over:
            raise RefusedAgentError(
                f"job {job.name!r} has {job.size} ranks, and rank {message.rank} says "
                f"{message.ranks}; end the job before its number of ranks changes"
            )
        is_other_process = before is not None and before.instance != message.instance
        return not is_same_token or message.ranks != job.size or is_other_process

    def _new_job(self, message: pb.Registration, now_s: float, epoch: int) -> Job:
        if message.job not in self.by_name and len(self.by_name) >= self._max_jobs:
            raise OverloadedError(
                f"{self._max_jobs} jobs are registered; end one, or raise --max-jobs",
                retry_after_s=1.0,
            )
        job = Job(message.job, message.ranks, message.job_token_sha256, epoch, since_s=now_s)
        self.by_name[job.name] = job
        return job


def _view_bytes(views: Mapping[int, JobView]) -> int:
    return sum(_VIEW_OVERHEAD + len(view.decisions) for view in views.values())
