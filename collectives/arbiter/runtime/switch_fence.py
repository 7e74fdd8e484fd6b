"""Fence of the controller at the switches, which is sent again after a restart of one."""

from __future__ import annotations

import asyncio

from presage.collectives.arbiter import agreement
from presage.collectives.arbiter.runtime.controller_steps import ControllerSteps
from presage.collectives.arbiter.runtime.state import ArbiterState
from presage.collectives.arbiter.switches import Outcome
from presage.collectives.core.messages import Admitted, Hello
from presage.errors import JournalError

_EPOCHS_AHEAD = 1 << 20  # of what switches know, after a lost journal
_RETRY_S = 0.1


class SwitchFence:
    """Fence of the controller, in force at all switches of the domain that can be reached."""

    def __init__(self, state: ArbiterState, steps: ControllerSteps) -> None:
        self._state, self._steps = state, steps
        self._skipped: frozenset[str] = frozenset()  # switches that lack the newest fence
        self._confirmed = (-1, -1)  # incarnation and token of the fence in force

    async def run(self) -> None:
        """Put the fence in force at all switches whenever it changes, until cancelled."""
        while True:
            await self._steps.fence_changed.wait()
            self._steps.fence_changed.clear()
            while (key := self._key()) != self._confirmed:
                try:
                    is_confirmed = await self._admit(key)
                except JournalError as error:
                    is_confirmed = False
                    self._state.notice(f"nothing changes until the journal can be written: {error}")
                if not is_confirmed:
                    await asyncio.sleep(_RETRY_S)

    async def handle_changed_switches(self) -> None:
        """Handle a change of the switches also while the journal cannot be written."""
        try:
            await self.handle_switches()
        except JournalError as error:
            self._state.notice(f"nothing changes until the journal can be written: {error}")
            self._steps.fence_changed.set()

    async def handle_switches(self, *, is_outdated: bool = False) -> None:
        """Handle a switch that has started again, or cannot be reached any more.

        Parameters
        ----------
        is_outdated : bool
            Whether a switch refuses the token of the fence.

        Raises
        ------
        JournalError
            The journal cannot be written.
        """
        state, switches = self._state, self._state.switches
        async with state.lock:
            self._raise_above(switches.newest_epoch, switches.newest_token)
            found = state.incarnations | {n: i for n, i in switches.incarnations.items() if i}
            is_first = state.controller.fence.incarnation == 0
            is_back = bool(self._skipped - switches.unreachable)
            if found != state.incarnations or is_first or is_back or is_outdated:
                self._skipped &= switches.unreachable
                state.incarnations, state.incarnation = found, state.incarnation + 1
                hello = Hello(state.incarnation)
                await self._steps.apply(agreement.receive(state.controller, hello))
            await state.save()
        self._steps.fence_changed.set()

    async def _admit(self, key: tuple[int, int]) -> bool:
        """Send the fence to all switches; return whether it is in force."""
        state, switches = self._state, self._state.switches
        async with state.lock:
            await state.save()  # a fence that the journal lacks must not be sent
            fence = state.controller.fence
            of_jobs = {job.name: job.switches for job in state.jobs.by_name.values()}
        self._skipped = switches.unreachable
        outcome = await switches.admit(fence.token, dict(fence.floors), of_jobs)
        if outcome is Outcome.OUTDATED:
            await switches.refresh()
            await self.handle_switches(is_outdated=True)
        if outcome is not Outcome.CONFIRMED or key != self._key():
            return False
        async with state.lock:
            lost = self._jobs_at(switches.unreachable)
            controller = agreement.withdraw_grants(state.controller, lost)
            await self._steps.apply(agreement.receive(controller, Admitted(*key)))
        self._confirmed = key
        return True

    def _key(self) -> tuple[int, int]:
        fence = self._state.controller.fence
        return fence.incarnation, fence.token

    def _jobs_at(self, switches: frozenset[str]) -> frozenset[str]:
        jobs = self._state.jobs.by_name.values()
        return frozenset(job.name for job in jobs if switches & set(job.switches))

    def _raise_above(self, epoch: int, token: int) -> None:
        """Continue above what a switch knows: the journal was lost if that is higher."""
        state = self._state
        own = agreement.newest_epoch(state.controller)
        if epoch <= own and token <= state.controller.fence.token:
            return
        state.controller = agreement.raise_token(state.controller, token)
        state.least_epoch = max(epoch, own) + _EPOCHS_AHEAD
        state.raise_epoch()
        state.notice(
            f"a switch knows epoch {epoch} and token {token}, which the journal lacks: the journal "
            f"was lost or is old; continuing at epoch {state.least_epoch}"
        )
