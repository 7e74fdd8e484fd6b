"""Steps of the controller: each is saved in the journal before its messages are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from presage.collectives.arbiter.agreement import Step
from presage.collectives.arbiter.runtime.rank_streams import RankStreams
from presage.collectives.arbiter.runtime.state import ArbiterState
from presage.collectives.core.messages import (
    Abort,
    Admission,
    Message,
    Prepare,
    Update,
    ViewUpdate,
)


class ControllerSteps:
    """Steps of the controller of an arbiter.

    Attributes
    ----------
    fence_changed : asyncio.Event
        Set when the fence has to be sent to the switches.
    changed_s : float
        Time at which the stage of the controller last changed.
    """

    def __init__(self, state: ArbiterState, streams: RankStreams) -> None:
        self._state, self._streams = state, streams
        self.fence_changed = asyncio.Event()
        self.changed_s = -1e9

    async def apply(self, step: Step) -> None:
        """Save the state of a step, then send its messages; the lock is held.

        Raises
        ------
        JournalError
            The journal cannot be written; nothing was sent.
        """
        state = self._state
        if step.state.stage is not state.controller.stage:
            self.changed_s = state.clock()
        if step.state != state.controller:
            state.controller = step.state
            await state.save()
        self.deliver(step.messages)

    def deliver(self, messages: Iterable[Message]) -> None:
        """Send messages to ranks, and let the fence be sent if one is for the switches."""
        for message in messages:
            if isinstance(message, Admission):
                self.fence_changed.set()
            elif isinstance(message, ViewUpdate | Prepare | Update | Abort):
                self._streams.send(message)
