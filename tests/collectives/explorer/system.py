"""Ranks, controller, switch and network of a configuration as one system to explore.

A state is a tuple of numbers: a local state for each rank, of the controller, of the switch, of the
ring of each job, the faults and early time-outs left, and the set of messages under way. The ring
itself is not part of the core: here all ranks of a job have to begin it before any can end it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from presage.collectives.core import messages as m
from presage.collectives.core import switch as switch_machine
from presage.collectives.core.rank import RankState
from tests.collectives.explorer import actors
from tests.collectives.explorer.actors import ControllerLocal, RankLocal
from tests.collectives.explorer.configuration import Configuration
from tests.collectives.explorer.protocols import (
    initial_agreement,
    initial_controller,
    initial_switch,
    is_obsolete,
)
from tests.collectives.explorer.search import Event, State
from tests.collectives.explorer.symmetry import Symmetry

CONTROLLER, SWITCH, FAULT = 100, 101, 102  # codes of actors; smaller ones are jobs


class SharedSwitch(Symmetry):
    """System of one configuration."""

    def __init__(self, config: Configuration) -> None:
        super().__init__(config)
        self.obsolete: dict[tuple[int, int], int] = {}

    def initial(self) -> State:
        config = self.config
        ranks = [
            RankLocal(
                RankState(m.Member(job, rank, config.sizes[job]), initial_agreement(config, job))
            )
            for job, rank in self.places
        ]
        switch = initial_switch(config)
        controller = ControllerLocal(initial_controller(config))
        faults = config.faults if config.fault != "none" else 0
        local = [self.locals.number(value) for value in (*ranks, controller, switch)]
        rings = [self.rings.number(None)] * len(self.jobs)
        hello = () if config.initial else (m.Hello(switch.incarnation),)
        _, mask = self._step(switch, (*hello, *config.delayed))
        return self.canonical((*local, *rings, faults, config.early or 0, mask))

    def local(self, state: State, position: int) -> Any:
        return self.locals.values[state[position]]

    @cached_property
    def dead(self) -> dict[int, int]:
        """Local states of crashed actors, by position."""
        values = [RankLocal(None)] * len(self.places) + [ControllerLocal(None), None]
        return {position: self.locals.number(value) for position, value in enumerate(values)}

    def is_dead(self, state: State, position: int) -> bool:
        return bool(state[position] == self.dead[position])

    def successors(self, state: State) -> Iterator[tuple[State, int, Event]]:
        for following, actor, event in self._events(state):
            yield self.canonical(following), actor, event

    def _events(self, state: State) -> Iterator[tuple[State, int, Event]]:
        is_quiet = True
        for step in self._prompt_events(state):
            is_quiet = False
            yield step
        if is_quiet or state[self.early_at]:
            spent = state if is_quiet else self._decremented(state, self.early_at)
            yield from self._time_outs(spent)
        if state[self.faults_at]:
            yield from self._faults(state)

    def _prompt_events(self, state: State) -> Iterator[tuple[State, int, Event]]:
        """Yield all events but time-outs and faults.

        Some events commute with all others, and happen first, singly. A ring that can end: the
        epoch that a rank contributed and the number that it started last do not change. Answers
        that the controller only collects: while it does, it only waits for them or a time-out.
        """
        rings = list(self._ring_ends(state))
        if not self.config.is_reduced:
            yield from rings
        elif rings:
            yield rings[0]
            return
        for bit in self.network.bits(state[-1] & self.collected):
            yield from self._deliveries(state, 1 << bit)
            return
        yield from self._deliveries(state, state[-1])
        for position in range(self.ring_at):
            for new, sent, name, is_time_out in self.own_events_of(state[position]):
                if not is_time_out:
                    following = self._after(state, position, new, state[-1], sent)
                    if following != state:
                        yield following, self._actor(position), (name, position)

    def _time_outs(self, state: State) -> Iterator[tuple[State, int, Event]]:
        for position in range(self.ring_at):
            for new, sent, name, is_time_out in self.own_events_of(state[position]):
                if is_time_out:
                    following = self._after(state, position, new, state[-1], sent)
                    if following != state:
                        yield following, self._actor(position), (name, position)
        if self.config.fault == "rank" and self.config.protocol == "two_phase":
            for following, event in self._departures(state):
                yield following, CONTROLLER, event

    def _actor(self, position: int) -> int:
        if position < self.controller_at:
            return self.jobs.index(self.places[position][0])
        return CONTROLLER if position == self.controller_at else SWITCH

    def _deliveries(self, state: State, mask: int) -> Iterator[tuple[State, int, Event]]:
        may_repeat = self.config.fault == "duplicate" and state[self.faults_at]
        for bit in self.network.bits(mask):
            position = self.receivers[bit]
            message = self.network.values[bit]
            new, sent = self.deliver(state[position], bit)
            rest = state[-1] & ~(1 << bit)
            yield (
                self._after(state, position, new, rest, sent),
                self._delivery_actor(position, message),
                ("deliver", message),
            )
            if may_repeat:
                spent = self._decremented(state, self.faults_at)
                following = self._after(spent, position, new, state[-1], sent)
                yield following, FAULT, ("deliver and repeat", message)

    def _delivery_actor(self, position: int, message: m.Message) -> int:
        if position < self.controller_at and isinstance(message, m.Result | m.Refusal):
            return SWITCH
        is_command = isinstance(message, actors.FROM_CONTROLLER)
        return CONTROLLER if is_command else self._actor(position)

    def _ring_ends(self, state: State) -> Iterator[tuple[State, int, Event]]:
        """Yield the ends of rings at single ranks: possible once all ranks have begun."""
        first = 0
        for index, job in enumerate(self.jobs):
            size, at = self.config.sizes[job], self.ring_at + index
            key = (*state[first : first + size], state[at])
            for offset, new, sent, ring in self.ring_ends_of(key):
                known = (*state[:at], ring, *state[at + 1 :])
                position = first + offset
                following = self._after(known, position, new, state[-1], sent)
                yield following, index, ("ring ends", position)
            first += size

    @staticmethod
    def _decremented(state: State, at: int) -> State:
        return (*state[:at], state[at] - 1, *state[at + 1 :])

    def _faults(self, state: State) -> Iterator[tuple[State, int, Event]]:
        spent = self._decremented(state, self.faults_at)
        fault = self.config.fault
        if fault == "loss":
            for bit in self.network.bits(state[-1]):
                message = self.network.values[bit]
                if not isinstance(message, actors.RELIABLE):
                    lost = (*spent[:-1], state[-1] & ~(1 << bit))
                    yield lost, FAULT, ("lose", message)
        positions = {
            "rank": range(self.controller_at),
            "controller": [self.controller_at],
            "switch": [self.switch_at],
        }
        for position in positions.get(fault, ()):
            if not self.is_dead(state, position):
                yield self._crashed(spent, position), FAULT, ("crash", position)
        if fault == "switch" and not self.is_dead(state, self.switch_at):
            step = switch_machine.restart(self.local(state, self.switch_at))
            new, sent = self._step(*step)
            yield self._after(spent, self.switch_at, new, state[-1], sent), FAULT, ("restart",)

    def _departures(self, state: State) -> Iterator[tuple[State, Event]]:
        """Yield the states in which the controller waits no more for a job with a dead rank."""
        local = self.local(state, self.controller_at)
        dead = {self.places[p][0] for p in range(self.controller_at) if self.is_dead(state, p)}
        for job in sorted(dead):
            step = self.machine.forget(local.state, job)
            if step.state != local.state:
                new, sent = self._step(local._replace(state=step.state), step.messages)
                following = self._after(state, self.controller_at, new, state[-1], sent)
                yield following, ("leave", job)

    def _crashed(self, state: State, position: int) -> State:
        dead = (*state[:position], self.dead[position], *state[position + 1 :])
        return (*dead[:-1], self._living(dead, state[-1]))

    def _living(self, state: State, mask: int) -> int:
        """Return the messages whose receivers live."""
        for bit in self.network.bits(mask):
            if self.is_dead(state, self.receivers[bit]):
                mask &= ~(1 << bit)
        return mask

    def _after(self, state: State, position: int, new: int, rest: int, sent: int) -> State:
        """Return the state after a step, without messages that can have no effect."""
        locals_ = [*state[:-1]]
        locals_[position] = new
        for bit in self.network.bits(sent):
            receiver = self.receivers[bit]
            dead = locals_[receiver] == self.dead[receiver]
            if not dead and not self._is_obsolete(locals_[receiver], bit):
                rest |= 1 << bit
        if new != state[position]:
            for bit in self.network.bits(rest):
                if self.receivers[bit] == position and self._is_obsolete(new, bit):
                    rest &= ~(1 << bit)
        return (*locals_, rest)

    def _is_obsolete(self, local: int, bit: int) -> int:
        found = self.obsolete.get((local, bit))
        if found is None:
            value, message = self.locals.values[local], self.network.values[bit]
            is_reduced = self.config.is_reduced
            found = self.obsolete[local, bit] = is_reduced and is_obsolete(value, message)
        return found
