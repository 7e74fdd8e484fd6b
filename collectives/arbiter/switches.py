"""Switches of a domain as the one switch that the controller fences.

Each switch has incarnations of its own. The controller sees a number that rises whenever one of
them has started again, and a fence that is confirmed when all reachable switches have confirmed
their part of it. Jobs at a switch that cannot be reached get no grants.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from presage.collectives.arbiter.domain import Domain, SwitchSpec
from presage.collectives.core.messages import Admission, Admitted, Hello
from presage.collectives.switch.client import statistics
from presage.collectives.switch.control import SwitchControl
from presage.collectives.switch.errors import OldAdmissionError
from presage.errors import PresageError
from presage.serving.server.log import log

T = TypeVar("T")

POLL_S = 0.25  # between checks for a restart of a switch
TIMEOUT_S = 1.0  # of a request to a switch
_LOG_S = 10.0  # before the same state of a switch is logged again


class Control(Protocol):
    """Connection to one switch for its controller; calls block until their time-out."""

    def hello(self, known: int) -> Hello:
        """Return the incarnation of the switch, which is above the known one if it is another."""

    def admit(self, admission: Admission) -> Admitted:
        """Put an admission in force."""

    def newest(self) -> tuple[int, int]:
        """Return the highest epoch and the token that a controller has sent to the switch."""


class SoftwareSwitch:
    """Control of a software switch that was started with the option ``controlled``."""

    def __init__(self, spec: SwitchSpec) -> None:
        self._spec = spec
        self._control = SwitchControl(spec.host, spec.port, spec.token, timeout_s=TIMEOUT_S)

    def hello(self, known: int) -> Hello:
        """Return the incarnation of the switch; see ``SwitchControl``."""
        return self._control.hello(known)

    def admit(self, admission: Admission) -> Admitted:
        """Put an admission in force; see ``SwitchControl``."""
        return self._control.admit(admission)

    def newest(self) -> tuple[int, int]:
        """Return the highest epoch and the token in the statistics of the switch."""
        spec = self._spec
        found = json.loads(statistics(spec.host, spec.port, spec.token, TIMEOUT_S))
        # Not the epochs of its jobs: a rank can forge those.
        return max([found["fence"], *found["floors"].values()]), found["admission"]


class Outcome(enum.Enum):
    """What became of an admission."""

    CONFIRMED = "in force at all switches that can be reached"
    FAILED = "a switch did not answer"
    OUTDATED = "a switch has a newer admission, or has started again"


class SwitchState(NamedTuple):
    """What the arbiter knows of a switch.

    ``incarnation`` is 0 before the first contact; ``problem`` is "" while it can be reached.
    """

    incarnation: int = 0
    problem: str = "not reached yet"


OnChange = Callable[[], Awaitable[None]]


class SwitchSet:
    """Switches of a domain.

    Parameters
    ----------
    controls : Mapping of str to Control
        Connection to each switch of the domain.
    """

    def __init__(self, domain: Domain, controls: Mapping[str, Control]) -> None:
        self.domain, self._controls = domain, controls
        self.states = {switch.name: SwitchState() for switch in domain.switches}
        self.newest_epoch = self.newest_token = 0  # that a switch has reported
        self._logged: dict[str, dict[SwitchState, float]] = {name: {} for name in self.states}
        self._locks = {switch.name: asyncio.Lock() for switch in domain.switches}

    @property
    def unreachable(self) -> frozenset[str]:
        """Names of the switches that cannot be reached."""
        return frozenset(name for name, state in self.states.items() if state.problem)

    @property
    def slots(self) -> dict[str, int]:
        """Slots of each switch, 0 while it cannot be reached."""
        return {
            switch.name: 0 if self.states[switch.name].problem else switch.slots
            for switch in self.domain.switches
        }

    @property
    def incarnations(self) -> dict[str, int]:
        """Newest known incarnation of each switch; 0 before the first contact."""
        return {name: state.incarnation for name, state in self.states.items()}

    async def check(self, name: str) -> bool:
        """Contact a switch; return whether its incarnation or reachability has changed."""
        before = self.states[name]
        try:
            control, known = self._controls[name], before.incarnation
            hello = await self._call(name, lambda: control.hello(known))
            if hello.incarnation != known:
                await self._read_newest(name)
            self._set(name, SwitchState(hello.incarnation, ""))
        except (PresageError, OSError) as error:
            self._fail(name, str(error))
        after = self.states[name]
        return (after.incarnation, bool(after.problem)) != (
            before.incarnation,
            bool(before.problem),
        )

    async def watch(self, on_change: OnChange) -> None:
        """Check all switches until cancelled, and report changes."""

        async def watch_one(name: str) -> None:
            while True:
                if await self.check(name):
                    await on_change()
                await asyncio.sleep(POLL_S)

        async with asyncio.TaskGroup() as tasks:
            for name in self.states:
                tasks.create_task(watch_one(name))

    async def admit(
        self, token: int, floors: Mapping[str, int], switches: Mapping[str, Collection[str]]
    ) -> Outcome:
        """Put floors in force at all switches that can be reached.

        Parameters
        ----------
        token : int
            Token of the controller's fence.
        floors : Mapping of str to int
            Oldest epoch that is accepted of each admitted job.
        switches : Mapping of str to collection of str
            Switches of each job.
        """

        async def admit_at(name: str) -> Outcome:
            state = self.states[name]
            if state.problem:
                return Outcome.CONFIRMED
            own = {job: floor for job, floor in floors.items() if name in switches.get(job, ())}
            admission = Admission(state.incarnation, token, tuple(sorted(own.items())))
            try:
                found = await self._call(name, lambda: self._controls[name].admit(admission))
            except OldAdmissionError:
                return Outcome.OUTDATED
            except (PresageError, OSError) as error:
                self._fail(name, str(error))
                return Outcome.FAILED
            is_confirmed = found == Admitted(state.incarnation, token)
            return Outcome.CONFIRMED if is_confirmed else Outcome.OUTDATED

        outcomes = await asyncio.gather(*(admit_at(name) for name in self.states))
        for worst in (Outcome.OUTDATED, Outcome.FAILED):
            if worst in outcomes:
                return worst
        return Outcome.CONFIRMED

    async def refresh(self) -> None:
        """Contact all switches, and read what they know, after an outdated admission."""
        for name in self.states:
            await self.check(name)
            with suppress(PresageError, OSError):
                await self._read_newest(name)

    async def _read_newest(self, name: str) -> None:
        epoch, token = await self._call(name, self._controls[name].newest)
        self.newest_epoch = max(self.newest_epoch, epoch)
        self.newest_token = max(self.newest_token, token)

    def _fail(self, name: str, problem: str) -> None:
        self._set(name, SwitchState(self.states[name].incarnation, problem or "unreachable"))

    def _set(self, name: str, state: SwitchState) -> None:
        """Set the state of a switch, and log it unless the same was logged a moment ago."""
        if state == self.states[name]:
            return
        self.states[name] = state
        now_s, logged = time.monotonic(), self._logged[name]
        if now_s - logged.get(state, -math.inf) < _LOG_S:
            return
        self._logged[name] = {s: at_s for s, at_s in logged.items() if now_s - at_s < _LOG_S}
        self._logged[name][state] = now_s
        level = logging.WARNING if state.problem else logging.INFO
        log(level, "switch", name=name, problem=state.problem or "none",
            incarnation=state.incarnation)  # fmt: skip

    async def _call(self, name: str, function: Callable[[], T]) -> T:
        async with self._locks[name]:
            return await asyncio.to_thread(function)
