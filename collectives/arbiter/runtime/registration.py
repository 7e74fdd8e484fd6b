"""Registration of ranks, and the messages that they send."""

from __future__ import annotations

from collections.abc import Sequence

from presage.collectives.arbiter import agreement
from presage.collectives.arbiter.jobs import Job, check_epochs, check_registration
from presage.collectives.arbiter.ranks.rank_entry import read_report
from presage.collectives.arbiter.ranks.rank_stream import RankStream
from presage.collectives.arbiter.runtime.controller_steps import ControllerSteps
from presage.collectives.arbiter.runtime.rank_streams import RankStreams
from presage.collectives.arbiter.runtime.state import ArbiterState
from presage.collectives.arbiter.timeline.recent import RecentDecisions
from presage.collectives.arbiter.wire import from_rank
from presage.collectives.core.costs import time_saved_s
from presage.collectives.core.messages import Adopted, Done, Message
from presage.collectives.core.view import JobView
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.errors import RefusedAgentError


class RankRegistration:
    """Ranks of an arbiter: their streams begin and end here, and their messages are handled."""

    def __init__(
        self,
        state: ArbiterState,
        streams: RankStreams,
        steps: ControllerSteps,
        recent: RecentDecisions,
    ) -> None:
        self._state, self._streams, self._steps = state, streams, steps
        self._recent = recent

    async def connect(self, message: pb.Registration) -> RankStream:
        """Register a rank and return its stream; see ``Arbiter.connect``."""
        state = self._state
        check_registration(message)
        views = check_epochs(message, agreement.newest_epoch(state.controller))
        if message.agreement != state.options.agreement:
            raise _other_agreement(message, state.options.agreement)
        async with state.lock:
            state.jobs.check_views(message.job, views)
            before = state.jobs.by_name.get(message.job)
            epoch = agreement.newest_epoch(state.controller) + 1
            job = state.jobs.register(message, state.clock(), epoch)
            stream = RankStream(job, message.rank, job.ranks[message.rank])
            try:
                if before is not None and job is not before:
                    self._recent.restart(before.name)
                    self._streams.close_job(before)
                self._add_views(job, views, message.newest_epoch)
                await self._open(stream)
            except BaseException:  # the call is cancelled, or the journal cannot be written
                self.disconnect(stream, has_left=False)
                raise
        return stream

    def disconnect(self, stream: RankStream, *, has_left: bool) -> None:
        """End a stream; a rank that has not left may come back within its lease."""
        self._streams.remove(stream)
        if stream.entry.gone_s is None:
            stream.entry.gone_s, stream.entry.has_left = self._state.clock(), has_left

    async def receive(self, stream: RankStream, message: pb.RankMessage) -> None:
        """Handle a message of a rank; see ``Arbiter.receive``."""
        if stream.is_closed:
            return
        if message.HasField("report"):
            self._receive_report(stream, message.report)
            return
        state, job = self._state, stream.job
        found = from_rank(message, job.name, stream.rank)
        if found is None:
            return
        async with state.lock:
            # The controller waits for the ranks of a job also after it was taken out.
            is_expected = job.is_member or (job.was_member and isinstance(found, Done))
            if not is_expected or self._is_forged(found):
                return
            if isinstance(found, Adopted):
                job.forget_views(found.epoch)
            await self._steps.apply(agreement.receive(state.controller, found))

    async def _open(self, stream: RankStream) -> None:
        """Save the job of a new stream, and send what its ranks need; the lock is held."""
        state, job = self._state, stream.job
        if job.is_complete:
            nodes = [job.ranks[rank].node for rank in sorted(job.ranks)]
            state.set_switches(job, state.switches.domain.switches_of(nodes))
        await state.save()
        self._streams.add(stream)
        self._streams.send_switches(job, state.switches.domain)
        if job.is_member:
            await self._steps.apply(agreement.resend(state.controller))

    def _add_views(self, job: Job, views: Sequence[JobView], newest_epoch: int) -> None:
        """Add the views of a rank; continue above its epoch if the journal was lost."""
        state = self._state
        job.views |= {view.epoch: view for view in views}
        newest = max([newest_epoch, *(view.epoch for view in views)])
        if newest > agreement.newest_epoch(state.controller):
            state.notice(f"job {job.name!r} knows epoch {newest}, which no journal has")
            state.least_epoch = max(newest, state.least_epoch)
            state.raise_epoch()

    def _receive_report(self, stream: RankStream, report: pb.Report) -> None:
        job, now_s = stream.job, self._state.clock()
        before = job.started
        read_report(stream.entry, report, now_s)
        if job.started > before:
            job.progress_s = now_s
        rows = self._recent.add(job, stream.rank, report.decisions, now_s)
        job.largest_bytes = max([job.largest_bytes, *(row.size_bytes for row in rows)])
        self._count_savings(job, [row.size_bytes for row in rows if row.way == pb.INC])

    def _count_savings(self, job: Job, sizes_bytes: Sequence[int]) -> None:
        """Count what switches have saved for AllReduces of a job that ran on them."""
        if not job.switches:
            return
        link = self._state.switches.domain.link(job.switches)
        job.saved_s += sum(max(0.0, time_saved_s(job.size, size, link)) for size in sizes_bytes)
        job.saved_calls += len(sizes_bytes)

    def _is_forged(self, message: Message) -> bool:
        """Return whether a rank reports an epoch that was never published."""
        epoch = message.epoch if isinstance(message, Adopted) else getattr(message, "tag", 0)
        if epoch <= agreement.newest_epoch(self._state.controller):
            return False
        job = getattr(message, "job", "")
        self._state.notice(f"job {job!r} reports epoch {epoch}, which was never published; ignored")
        return True


def _other_agreement(message: pb.Registration, own: str) -> RefusedAgentError:
    return RefusedAgentError(
        f"job {message.job!r} agrees by {message.agreement!r}, and this arbiter by {own!r}; start "
        "one of them with the other's"
    )
