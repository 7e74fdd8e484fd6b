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
        self._planning = ViewPlanning(state, self._steps)
        self._ranks = RankRegistration(state, self._streams, self._steps, self.recent)
        self._resent_s = self._planned_s = -1e9

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
    def changes(self) -> int:
        """Changes of decisions since the start."""
        return self._state.changes

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
                if self.controller.can_propose and now_s - self._planned_s >= self.options.plan_s:
                    self._planned_s = now_s
                    await self._planning.plan(now_s)
            except JournalError as error:
                state.notice(f"nothing changes until the journal can be written: {error}")

    async def _pass_time(self, now_s: float) -> None:
        """Let jobs leave, stop waiting for ranks, and repeat messages; the lock is held."""
        jobs = self.jobs.by_name.values()
        for notice in membership.find_leaving(jobs, self.controller, self.options, now_s):
            self._state.notice(notice)
        await self._forget_ended(now_s)
        if now_s - self._steps.changed_s >= self._patience_s():
            await self._steps.apply(agreement.time_out(self.controller))
        if now_s - self._resent_s >= self.options.resend_s:
            self._resent_s = now_s
            await self._state.save()
            self._steps.deliver(agreement.resend(self.controller).messages)

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
            self._state.notice(f"job {job.name!r} has ended")
        if ended:
            await self._state.save()
        self.recent.forget(self.jobs.by_name, time.time() - _REMEMBERED_S)
