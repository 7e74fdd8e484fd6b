"""Arbiter of a domain: jobs, controller, switches and journal in one event loop.

Every change of the controller is written to the journal before its messages are sent. Messages to
ranks and switches may be lost, and are repeated while they are needed; so an arbiter that is
killed at any moment continues where its journal ends. ``runtime`` has the parts of it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from presage.collectives.arbiter import agreement, membership
from presage.collectives.arbiter.agreement import Controller
from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.arbiter.journal import Journal
from presage.collectives.arbiter.ranks.rank_stream import RankStream
from presage.collectives.arbiter.runtime.controller_steps import ControllerSteps
from presage.collectives.arbiter.runtime.rank_streams import RankStreams
from presage.collectives.arbiter.runtime.registration import RankRegistration
from presage.collectives.arbiter.runtime.state import ArbiterState
from presage.collectives.arbiter.runtime.switch_fence import SwitchFence
from presage.collectives.arbiter.runtime.view_planning import ViewPlanning
from presage.collectives.arbiter.switches import SwitchSet
from presage.collectives.arbiter.timeline.recent import RecentDecisions
from presage.collectives.core.view import View
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.errors import JournalError

TICK_S = 0.1
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
    options : ArbiterOptions
        Options of the arbiter.
    jobs : Jobs
        Registered jobs.
    notices : deque of str
        Recent events that an operator should know.
    recent : RecentDecisions
        AllReduces that ranks have reported.

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
        self._state = state = ArbiterState(switches, journal, options or ArbiterOptions(), clock)
        self.switches, self.options, self.jobs = switches, state.options, state.jobs
        self.notices: deque[str] = state.notices
        self.recent = RecentDecisions()
        self._streams = RankStreams()
        self._steps = ControllerSteps(state, self._streams)
        self._fence = SwitchFence(state, self._steps)
        self.planning = ViewPlanning(state, self._steps)
        self._ranks = RankRegistration(state, self._streams, self._steps, self.recent)
        self._resent_s = self.planned_s = -1e9
        self._has_timed_out = False  # the last round

    @property
    def controller(self) -> Controller:
        """State of the agreement."""
        return self._state.controller

    @property
    def view(self) -> View | None:
        """View that was proposed last."""
        return self._state.view

    @property
    def problems(self) -> dict[str, str]:
        """Why arrivals of a job cannot be predicted, in the newest view."""
        return self._state.problems

    @property
    def now_s(self) -> float:
        """Time by the clock of the arbiter, in seconds."""
        return self._state.clock()

    @property
    def changes(self) -> int:
        """Changes of decisions since the start."""
        return self._state.changes

    @property
    def open_streams(self) -> int:
        """Number of ranks that have a stream."""
        return len(self._streams)

    async def start(self) -> None:
        """Contact all switches once, and continue the change that the journal has."""
        await asyncio.gather(*(self.switches.check(name) for name in self.switches.states))
        await self._fence.handle_switches()
        async with self._state.lock:
            await self._steps.apply(agreement.resend(self.controller))
        self._steps.fence_changed.set()

    async def run(self) -> None:
        """Arbitrate until cancelled. While the journal cannot be written, nothing changes."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.switches.watch(self._fence.handle_changed_switches))
            tasks.create_task(self._fence.run())
            tasks.create_task(self._tick())

    async def connect(self, message: pb.Registration) -> RankStream:
        """Register a rank and return its stream.

        Raises
        ------
        InvalidRequestError, RefusedAgentError, OverloadedError
            It is rejected; the message says why.
        JournalError
            The job cannot be saved.
        """
        return await self._ranks.connect(message)

    async def disconnect(self, stream: RankStream, *, has_left: bool) -> None:
        """End a stream; a rank that has not left may come back within its lease."""
        self._ranks.disconnect(stream, has_left=has_left)

    async def receive(self, stream: RankStream, message: pb.RankMessage) -> None:
        """Handle a message of a rank.

        Raises
        ------
        InvalidRequestError
            A value is out of range.
        """
        await self._ranks.receive(stream, message)

    async def _tick(self) -> None:
        state = self._state
        while True:
            await asyncio.sleep(TICK_S)
            now_s = state.clock()
            try:
                async with state.lock:
                    await self._pass_time(now_s)
                if self._can_plan(now_s):
                    self.planned_s, self._has_timed_out = now_s, False
                    await self.planning.plan(now_s)
            except JournalError as error:
                state.notice(f"nothing changes until the journal can be written: {error}")

    def _can_plan(self, now_s: float) -> bool:
        """Return whether decisions may change now.

        A round that ranks at different AllReduces have ended is tried again at once.
        """
        is_retry = not self.controller.is_stable and not self._has_timed_out
        is_due = is_retry or now_s - self.planned_s >= self.options.plan_s
        return self.controller.can_propose and is_due

    async def _pass_time(self, now_s: float) -> None:
        """Let jobs leave, stop waiting for ranks, and repeat messages; the lock is held."""
        jobs = self.jobs.by_name.values()
        for notice in membership.find_leaving(jobs, self.controller, self.options, now_s):
            self._state.notice(notice)
        await self._forget_ended(now_s)
        for plan in self.controller.target:
            job = self.jobs.by_name.get(plan.job)
            if job is None or not job.was_member:  # it has ended, and maybe has a successor
                await self._steps.apply(agreement.forget(self.controller, plan.job))
        if now_s - self._steps.changed_s >= self._patience_s():
            await self._stop_waiting(now_s)
        if now_s - self._resent_s >= self.options.resend_s:
            self._resent_s = now_s
            await self._state.save()
            self._steps.deliver(agreement.resend(self.controller).messages)

    async def _stop_waiting(self, now_s: float) -> None:
        """Stop waiting for ranks; those that are locked run for a while before the next round."""
        stage = self.controller.stage
        await self._steps.apply(agreement.time_out(self.controller))
        is_aborted = self.controller.stage is not stage and self.controller.can_propose
        if is_aborted and self.changes:  # not by a restart: its ranks have waited
            self.planned_s, self._has_timed_out = now_s, True

    def _patience_s(self) -> float:
        """Return how long the controller waits for ranks: three iterations of the slowest job.

        With two phases it waits for less, since all other ranks are locked meanwhile.
        """
        if self.options.agreement == "two_phase":
            return self.options.lock_s
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
            self._state.notice(f"job {job.name!r} has ended")
        if ended:
            await self._state.save()
        self.recent.forget(self.jobs.by_name, now_s - _REMEMBERED_S)
