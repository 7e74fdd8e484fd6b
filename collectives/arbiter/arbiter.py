"""Arbiter of a domain: jobs, controller, switches and journal in one event loop.

Every change of the controller is written to the journal before its messages are sent. Messages to
ranks and switches may be lost, and are repeated while they are needed; so an arbiter that is
killed at any moment continues where its journal ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from presage.collectives.arbiter import agreement, membership, saved_state
from presage.collectives.arbiter.agreement import Controller
from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.arbiter.jobs import Job, Jobs, check_epochs, check_registration
from presage.collectives.arbiter.journal import Journal
from presage.collectives.arbiter.planner import JobReport, plan
from presage.collectives.arbiter.ranks.rank_entry import read_report
from presage.collectives.arbiter.ranks.rank_stream import RankStream
from presage.collectives.arbiter.switches import Outcome, SwitchSet
from presage.collectives.arbiter.timeline.recent import RecentDecisions
from presage.collectives.arbiter.wire import from_rank, to_rank
from presage.collectives.core.arbitration import decision_tables
from presage.collectives.core.costs import time_saved_s
from presage.collectives.core.fencing import JobPlan
from presage.collectives.core.messages import (
    Abort,
    Admission,
    Admitted,
    Adopted,
    Hello,
    Message,
    Prepare,
    Update,
    ViewUpdate,
)
from presage.collectives.core.view import JobView, View
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.errors import JournalError, RefusedAgentError
from presage.serving.server.log import log

TICK_S = 0.1
_EPOCHS_AHEAD = 1 << 20  # of what switches know, after a lost journal
_RETRY_S = 0.1
_MOST_PATIENCE_S = 10.0
_REMEMBERED_S = 60.0  # AllReduces of a job that has ended


class Arbiter:
    """Arbiter of a domain.

    Parameters
    ----------
    switches : SwitchSet
        Switches of the domain.
    journal : Journal
        Where the slow state is; another arbiter cannot open it.
    clock : callable
        Monotonic time in seconds.

    Attributes
    ----------
    controller : InBandController or TwoPhaseController
        State of the agreement.
    jobs : Jobs
        Registered jobs.
    view : View or None
        View that was proposed last.
    problems : dict of str to str
        Why arrivals of a job cannot be predicted, in the newest view.
    notices : deque of str
        Recent events that an operator should know.

    Raises
    ------
    JournalError
        The journal cannot be read, or is of the other agreement.
    """

    def __init__(
        self,
        switches: SwitchSet,
        journal: Journal,
        options: ArbiterOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options or ArbiterOptions()
        self.switches, self._journal, self._clock = switches, journal, clock
        self.jobs = Jobs(self.options.max_jobs, self.options.lease_s)
        self.view: View | None = None
        self.problems: dict[str, str] = {}
        self.notices: deque[str] = deque(maxlen=50)
        self.recent = RecentDecisions()
        self.changes = 0  # of decisions, since the start
        self._streams: dict[tuple[str, int], RankStream] = {}
        self._busy = asyncio.Lock()  # held while the controller or the set of jobs changes
        self._fence_changed = asyncio.Event()
        self._skipped: frozenset[str] = frozenset()  # switches that lack the newest fence
        self._least_epoch = 0  # that ranks and switches know, after a lost journal
        self._confirmed = (-1, -1)  # incarnation and token of the fence in force
        self._changed_s = self._resent_s = self._planned_s = -1e9
        text = journal.read()
        saved = saved_state.parse(text, self.options.agreement)
        self.is_restored = bool(text)
        self.controller: Controller = saved.controller
        self._incarnation, self._incarnations = saved.incarnation, dict(saved.incarnations)
        self._saved = text
        for job in saved.jobs:
            job.since_s = job.progress_s = clock()
            self.jobs.by_name[job.name] = job
            if not set(job.switches) <= set(switches.states):  # the domain has changed
                self._set_switches(job, ())

    async def start(self) -> None:
        """Contact all switches once, and continue the change that the journal has."""
        await asyncio.gather(*(self.switches.check(name) for name in self.switches.states))
        await self._on_switches()
        async with self._busy:
            await self._apply(agreement.resend(self.controller))
        self._fence_changed.set()

    async def run(self) -> None:
        """Arbitrate until cancelled. While the journal cannot be written, nothing changes."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.switches.watch(self._on_changed_switches))
            tasks.create_task(self._fence())
            tasks.create_task(self._tick())

    # --- streams of ranks ---------------------------------------------------------------------

    async def connect(self, message: pb.Registration) -> RankStream:
        """Register a rank and return its stream.

        Raises
        ------
        InvalidRequestError, RefusedAgentError, OverloadedError
            It is rejected; the message says why.
        JournalError
            The job cannot be saved.
        """
        check_registration(message)
        views = check_epochs(message, agreement.newest_epoch(self.controller))
        if message.agreement != self.options.agreement:
            raise _other_agreement(message, self.options.agreement)
        async with self._busy:
            now_s = self._clock()
            self.jobs.check_views(message.job, views)
            before = self.jobs.by_name.get(message.job)
            job = self.jobs.register(message, now_s, agreement.newest_epoch(self.controller) + 1)
            stream = RankStream(job, message.rank, job.ranks[message.rank])
            try:
                if before is not None and job is not before:
                    self._replace(before)
                self._add_views(job, views, message.newest_epoch)
                await self._open(stream)
            except BaseException:  # the call is cancelled, or the journal cannot be written
                await self.disconnect(stream, has_left=False)
                raise
        return stream

    async def _open(self, stream: RankStream) -> None:
        """Save the job of a new stream, and send what its ranks need; the lock is held."""
        job, key = stream.job, (stream.job.name, stream.rank)
        if job.is_complete:
            nodes = [job.ranks[rank].node for rank in sorted(job.ranks)]
            self._set_switches(job, self.switches.domain.switches_of(nodes))
        await self._save()
        if (old := self._streams.get(key)) is not None:
            old.close()
        self._streams[key] = stream
        self._send_switches(job)
        if job.is_member:
            await self._apply(agreement.resend(self.controller))

    def _set_switches(self, job: Job, switches: tuple[str, ...]) -> None:
        """Set the switches of a job. A member with other ones leaves, and joins by these."""
        if job.is_member and switches != job.switches:
            membership.take_out(job, self.controller)
        job.switches = switches

    def _add_views(self, job: Job, views: Sequence[JobView], newest_epoch: int) -> None:
        """Add the views of a rank; continue above its epoch if the journal was lost."""
        job.views |= {view.epoch: view for view in views}
        newest = max([newest_epoch, *(view.epoch for view in views)])
        if newest > agreement.newest_epoch(self.controller):
            self._notice(f"job {job.name!r} knows epoch {newest}, which no journal has")
            self._least_epoch = max(newest, self._least_epoch)
            self._raise_epoch()

    async def disconnect(self, stream: RankStream, *, has_left: bool) -> None:
        """End a stream; a rank that has not left may come back within its lease."""
        if self._streams.get((stream.job.name, stream.rank)) is stream:
            del self._streams[stream.job.name, stream.rank]
        if stream.entry.gone_s is None:
            stream.entry.gone_s, stream.entry.has_left = self._clock(), has_left

    async def receive(self, stream: RankStream, message: pb.RankMessage) -> None:
        """Handle a message of a rank.

        Raises
        ------
        InvalidRequestError
            A value is out of range.
        """
        if stream.is_closed:
            return
        job, now_s = stream.job, self._clock()
        if message.HasField("report"):
            before = job.started
            read_report(stream.entry, message.report, now_s)
            if job.started > before:
                job.progress_s = now_s
            rows = self.recent.add(job, stream.rank, message.report.decisions, time.time())
            self._count_savings(job, [row.size_bytes for row in rows if row.way == pb.INC])
            return
        found = from_rank(message, job.name, stream.rank)
        if found is None:
            return
        async with self._busy:
            if not job.is_member or self._is_forged(found):
                return
            if isinstance(found, Adopted):
                job.forget_views(found.epoch)
            await self._apply(agreement.receive(self.controller, found))

    def _count_savings(self, job: Job, sizes_bytes: Sequence[int]) -> None:
        """Count what switches have saved for AllReduces of a job that ran on them."""
        if not job.switches:
            return
        link = self.switches.domain.link(job.switches)
        job.saved_s += sum(max(0.0, time_saved_s(job.size, size, link)) for size in sizes_bytes)
        job.saved_calls += len(sizes_bytes)

    def _is_forged(self, message: Message) -> bool:
        """Return whether a rank reports an epoch that was never published."""
        epoch = message.epoch if isinstance(message, Adopted) else getattr(message, "tag", 0)
        if epoch <= agreement.newest_epoch(self.controller):
            return False
        job = getattr(message, "job", "")
        self._notice(f"job {job!r} reports epoch {epoch}, which was never published; ignored")
        return True

    def _replace(self, job: Job) -> None:
        """End the streams of a job whose name another one has taken."""
        self.recent.restart(job.name)
        for rank in job.ranks:
            stream = self._streams.get((job.name, rank))
            if stream is not None and stream.job is job:
                stream.close()
                del self._streams[job.name, rank]

    def _send_switches(self, job: Job) -> None:
        specs = [self.switches.domain[name] for name in job.switches]
        registered = pb.Registered(
            switches=[
                pb.Switch(name=s.name, host=s.host, port=s.port, token=s.token, epoch=job.epoch)
                for s in specs
            ]
        )
        for rank in job.ranks:
            if (stream := self._streams.get((job.name, rank))) is not None:
                stream.put(pb.ArbiterMessage(registered=registered))

    # --- steps of the controller ----------------------------------------------------------------

    async def _apply(self, step: agreement.Step) -> None:
        """Save the state of a step, then send its messages; the lock is held."""
        if step.state.stage is not self.controller.stage:
            self._changed_s = self._clock()
        if step.state != self.controller:
            self.controller = step.state
            await self._save()
        self._deliver(step.messages)

    async def _save(self) -> None:
        """Write the slow state if it has changed."""
        text = saved_state.to_text(
            self.controller, self._incarnation, self._incarnations, self.jobs.by_name.values()
        )
        if text != self._saved:
            writing = asyncio.ensure_future(asyncio.to_thread(self._journal.write, text))
            try:
                await asyncio.shield(writing)
            finally:  # also when cancelled: a later write must not be overtaken by this one
                await asyncio.wait((writing,))
                if writing.exception() is None:
                    self._saved = text

    def _deliver(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if isinstance(message, Admission):
                self._fence_changed.set()
            elif isinstance(message, ViewUpdate | Prepare | Update | Abort):
                self._deliver_to_rank(message)

    def _deliver_to_rank(self, message: ViewUpdate | Prepare | Update | Abort) -> None:
        stream = self._streams.get((message.job, message.rank))
        if stream is None or stream.is_closed or not stream.job.was_member:
            return  # the controller's record is of an ended job of that name
        if isinstance(message, ViewUpdate) and stream.job.views:
            # Ranks of the job may have views of an earlier membership, each its own ones.
            views = {**stream.job.views, **{view.epoch: view for view in message.views}}
            message = message._replace(views=tuple(views[epoch] for epoch in sorted(views)))
        stream.put(to_rank(message))

    async def _fence(self) -> None:
        """Put the fence of the controller in force at all switches, whenever it changes."""
        while True:
            await self._fence_changed.wait()
            self._fence_changed.clear()
            while (key := self._fence_key()) != self._confirmed:
                try:
                    is_confirmed = await self._admit(key)
                except JournalError as error:
                    is_confirmed = False
                    self._notice(f"nothing changes until the journal can be written: {error}")
                if not is_confirmed:
                    await asyncio.sleep(_RETRY_S)

    async def _admit(self, key: tuple[int, int]) -> bool:
        """Send the fence to all switches; return whether it is in force."""
        async with self._busy:
            await self._save()  # a fence that the journal lacks must not be sent
            fence = self.controller.fence
            of_jobs = {job.name: job.switches for job in self.jobs.by_name.values()}
        self._skipped = self.switches.unreachable
        outcome = await self.switches.admit(fence.token, dict(fence.floors), of_jobs)
        if outcome is Outcome.OUTDATED:
            await self.switches.refresh()
            await self._on_switches(is_outdated=True)
        if outcome is not Outcome.CONFIRMED or key != self._fence_key():
            return False
        async with self._busy:
            lost = self._jobs_at(self.switches.unreachable)
            state = agreement.withdraw_grants(self.controller, lost)
            await self._apply(agreement.receive(state, Admitted(*key)))
        self._confirmed = key
        return True

    def _fence_key(self) -> tuple[int, int]:
        return self.controller.fence.incarnation, self.controller.fence.token

    def _jobs_at(self, switches: frozenset[str]) -> frozenset[str]:
        return frozenset(
            job.name for job in self.jobs.by_name.values() if switches & set(job.switches)
        )

    async def _on_changed_switches(self) -> None:
        try:
            await self._on_switches()
        except JournalError as error:
            self._notice(f"nothing changes until the journal can be written: {error}")
            self._fence_changed.set()

    async def _on_switches(self, *, is_outdated: bool = False) -> None:
        """Handle a switch that has started again, or cannot be reached any more.

        ``is_outdated`` means that a switch refuses the token of the fence.
        """
        async with self._busy:
            self._raise_above(self.switches.newest_epoch, self.switches.newest_token)
            found = self._incarnations | {n: i for n, i in self.switches.incarnations.items() if i}
            is_first = self.controller.fence.incarnation == 0
            is_back = bool(self._skipped - self.switches.unreachable)
            if found != self._incarnations or is_first or is_back or is_outdated:
                self._skipped &= self.switches.unreachable
                self._incarnations, self._incarnation = found, self._incarnation + 1
                await self._apply(agreement.receive(self.controller, Hello(self._incarnation)))
            await self._save()
        self._fence_changed.set()

    def _raise_above(self, epoch: int, token: int) -> None:
        """Continue above what a switch knows: the journal was lost if that is higher."""
        own = agreement.newest_epoch(self.controller)
        if epoch <= own and token <= self.controller.fence.token:
            return
        self.controller = agreement.raise_token(self.controller, token)
        self._least_epoch = max(epoch, own) + _EPOCHS_AHEAD
        self._raise_epoch()
        self._notice(
            f"a switch knows epoch {epoch} and token {token}, which the journal lacks: the journal "
            f"was lost or is old; continuing at epoch {self._least_epoch}"
        )

    def _raise_epoch(self) -> None:
        """Raise the epoch to the least one, unless a change that has an epoch is under way."""
        if self.controller.can_propose:
            self.controller = agreement.raise_epoch(self.controller, self._least_epoch)

    # --- passing of time --------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self._clock()
            try:
                async with self._busy:
                    await self._pass_time(now_s)
                if self.controller.can_propose and now_s - self._planned_s >= self.options.plan_s:
                    self._planned_s = now_s
                    await self._plan(now_s)
            except JournalError as error:
                self._notice(f"nothing changes until the journal can be written: {error}")

    async def _pass_time(self, now_s: float) -> None:
        """Let jobs leave, stop waiting for ranks, and repeat messages; the lock is held."""
        jobs = self.jobs.by_name.values()
        for notice in membership.find_leaving(jobs, self.controller, self.options, now_s):
            self._notice(notice)
        await self._forget_ended(now_s)
        if now_s - self._changed_s >= self._patience_s():
            await self._apply(agreement.time_out(self.controller))
        if now_s - self._resent_s >= self.options.resend_s:
            self._resent_s = now_s
            await self._save()
            self._deliver(agreement.resend(self.controller).messages)

    def _patience_s(self) -> float:
        """Return how long the controller waits for ranks: three iterations of the slowest job."""
        jobs = self.view.jobs if self.view else ()
        periods = [3 * job.period_s for job in jobs if job.is_predictable]
        return min(_MOST_PATIENCE_S, max([self.options.adopt_s, *periods]))

    async def _forget_ended(self, now_s: float) -> None:
        ended = [
            job
            for job in self.jobs.by_name.values()
            if not job.is_member and job.is_over(now_s, self.options.lease_s)
        ]
        for job in ended:
            del self.jobs.by_name[job.name]
            self._notice(f"job {job.name!r} has ended")
        if ended:
            await self._save()
        self.recent.forget(self.jobs.by_name, time.time() - _REMEMBERED_S)

    async def _plan(self, now_s: float) -> None:
        """Propose new decisions if the planner wants them."""
        members = membership.members(self.jobs.by_name.values(), now_s)
        if any(not job.is_complete for job in members):
            return  # of the journal: they come back, or leave soon
        members, reports, problems = self._reports(members, now_s)
        joining = [job for job in members if not job.is_member]
        current = None if joining or not self.controller.is_stable else self.view
        if not members and not self.controller.jobs:
            return
        view = plan(reports, current, self.switches.slots, now_s, self.options.planner)
        if view is None:
            return
        planned = [(job, job.is_member, job.switches) for job in members]
        tables = await asyncio.to_thread(decision_tables, view)
        async with self._busy:
            found = [(self.jobs.by_name.get(j.name), j.is_member, j.switches) for j in members]
            if found != planned or not self.controller.can_propose:
                return  # a job was replaced, or has other switches now
            self._raise_epoch()
            plans = [JobPlan(job.name, job.size, tables[job.name]) for job in members]
            for job in joining:
                job.is_member = job.was_member = True
                job.progress_s = now_s
            self.view, self.problems = view, problems
            self.changes += 1
            names = [job.name for job in joining]
            await self._apply(agreement.propose(self.controller, plans, names))

    def _reports(
        self, jobs: Iterable[Job], now_s: float
    ) -> tuple[list[Job], list[JobReport], dict[str, str]]:
        """Return the jobs that can be planned, their reports, and why arrivals are unknown."""
        planned, reports, problems = [], [], {}
        for job in jobs:
            try:
                demand, problem = job.demand(self.switches.domain.link(job.switches))
            except ValueError as error:
                self._notice(f"job {job.name!r} cannot be planned ({error}); it runs by ring")
                job.back_s = now_s + self.options.idle_s
                membership.take_out(job, self.controller)
                continue
            planned.append(job)
            reports.append(JobReport(demand, job.started))
            if problem:
                problems[job.name] = problem
        return planned, reports, problems

    def _notice(self, text: str) -> None:
        if not self.notices or self.notices[-1] != text:
            self.notices.append(text)
            log(logging.WARNING, "arbiter", notice=text)


def _other_agreement(message: pb.Registration, own: str) -> RefusedAgentError:
    return RefusedAgentError(
        f"job {message.job!r} agrees by {message.agreement!r}, and this arbiter by {own!r}; start "
        "one of them with the other's"
    )
