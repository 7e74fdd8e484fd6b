"""State that the parts of an arbiter share, and its copy in the journal."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from presage.collectives.arbiter import agreement, membership, saved_state
from presage.collectives.arbiter.agreement import Controller
from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.arbiter.jobs import Job, Jobs
from presage.collectives.arbiter.journal import Journal
from presage.collectives.arbiter.switches import SwitchSet
from presage.collectives.core.view import View
from presage.serving.server.log import log


class ArbiterState:
    """Jobs, controller and notices of an arbiter.

    Parameters
    ----------
    clock : callable
        Monotonic time in seconds.

    Attributes
    ----------
    controller : InBandController or TwoPhaseController
        State of the agreement.
    jobs : Jobs
        Registered jobs.
    incarnation : int
        Incarnation of the domain, which rises whenever one of its switches has started again.
    incarnations : dict of str to int
        Incarnation of each switch.
    least_epoch : int
        Epoch that ranks or switches know, and the journal has lost; 0 for none.
    view : View or None
        View that was proposed last.
    problems : dict of str to str
        Why arrivals of a job cannot be predicted, in the newest view.
    changes : int
        Changes of decisions since the start.
    notices : deque of str
        Recent events that an operator should know.
    lock : asyncio.Lock
        Held while the controller or the set of jobs changes.

    Raises
    ------
    JournalError
        The journal cannot be read, or is of the other agreement.
    """

    def __init__(
        self,
        switches: SwitchSet,
        journal: Journal,
        options: ArbiterOptions,
        clock: Callable[[], float],
    ) -> None:
        self.switches, self.journal, self.options, self.clock = switches, journal, options, clock
        self.jobs = Jobs(options.max_jobs, options.lease_s)
        self.view: View | None = None
        self.problems: dict[str, str] = {}
        self.changes = self.least_epoch = 0
        self.notices: deque[str] = deque(maxlen=50)
        self.lock = asyncio.Lock()
        text = journal.read()
        saved = saved_state.parse(text, options.agreement)
        self.controller: Controller = saved.controller
        self.incarnation, self.incarnations = saved.incarnation, dict(saved.incarnations)
        self._saved = text
        for job in saved.jobs:
            job.since_s = job.progress_s = clock()
            self.jobs.by_name[job.name] = job
            if not set(job.switches) <= set(switches.states):  # the domain has changed
                self.set_switches(job, ())

    async def save(self) -> None:
        """Write the slow state to the journal if it has changed.

        Raises
        ------
        JournalError
            The journal cannot be written.
        """
        text = saved_state.to_text(
            self.controller, self.incarnation, self.incarnations, self.jobs.by_name.values()
        )
        if text != self._saved:
            writing = asyncio.ensure_future(asyncio.to_thread(self.journal.write, text))
            try:
                await asyncio.shield(writing)
            finally:  # also when cancelled: a later write must not be overtaken by this one
                await asyncio.wait((writing,))
                if writing.exception() is None:
                    self._saved = text

    def set_switches(self, job: Job, switches: tuple[str, ...]) -> None:
        """Set the switches of a job. A member with other ones leaves, and joins by these."""
        if job.is_member and switches != job.switches:
            membership.take_out(job, self.controller)
        job.switches = switches

    def raise_epoch(self) -> None:
        """Raise the epoch to the least one, unless a change that has an epoch is under way."""
        if self.controller.can_propose:
            self.controller = agreement.raise_epoch(self.controller, self.least_epoch)

    def notice(self, text: str) -> None:
        """Log an event and add it to the notices, unless it is the newest one."""
        if not self.notices or self.notices[-1] != text:
            self.notices.append(text)
            log(logging.WARNING, "arbiter", notice=text)
