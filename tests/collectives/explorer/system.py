"""Ranks, controller, switch and network of a configuration as one system to explore.

A state is a tuple of numbers: a local state for each rank, of the controller, of the switch, of the
ring of each job, the faults and early time-outs left, and the set of messages under way. The ring
itself is not part of the core: here all ranks of a job have to begin it before any can end it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeAlias

from presage.collectives.core import messages as m
from presage.collectives.core import rank as rank_machine
from presage.collectives.core import switch as switch_machine
from presage.collectives.core.rank import Phase, RankState
from presage.collectives.core.two_phase import TwoPhaseAgreement
from tests.collectives.explorer import actors
from tests.collectives.explorer.actors import ControllerLocal, Interned, Network, RankLocal, Ways
from tests.collectives.explorer.configuration import Configuration, job_plans
from tests.collectives.explorer.protocols import (
    CONTROLLERS,
    initial_agreement,
    initial_controller,
    initial_switch,
    is_obsolete,
)
from tests.collectives.explorer.search import Event, State

CONTROLLER, SWITCH, FAULT = 100, 101, 102  # codes of actors; smaller ones are jobs
# Next local state, messages sent, name, and whether it is a time-out.
OwnEvent: TypeAlias = tuple[int, int, str, bool]


class SharedSwitch:
    """System of one configuration."""

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self.jobs = sorted(config.sizes)
        self.places = [(job, rank) for job in self.jobs for rank in range(config.sizes[job])]
        self.controller_at = len(self.places)
        self.switch_at = self.controller_at + 1
        self.ring_at = self.switch_at + 1
        self.faults_at = self.ring_at + len(self.jobs)
        self.early_at = self.faults_at + 1
        self.machine = CONTROLLERS[config.protocol]
        self.locals = Interned()  # of ranks, controller and switch
        self.rings = Interned()
        self.network = Network()
        self.receivers: list[int] = []  # of each message: the position of its receiver
        # A restarted switch makes the order of its messages matter.
        self.collected_kinds = (m.Ack, m.Done, *(() if config.fault == "switch" else (m.Admitted,)))
        self.collected = 0  # messages of these kinds
        self.delivered: dict[tuple[int, int], tuple[int, int]] = {}
        self.own_events: dict[int, list[OwnEvent]] = {}
        self.ring_ends: dict[tuple[int, ...], list[tuple[int, int, int, int]]] = {}
        self.obsolete: dict[tuple[int, int], int] = {}
        self.swaps: dict[tuple[int, int], int] = {}
        self.swapped_sets: dict[tuple[int, int], int] = {}

    # --- states -------------------------------------------------------------------------------

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
        return state[position] == self.dead[position]

    # --- events -------------------------------------------------------------------------------

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

        Some events commute with all others, and happen first and alone. A ring that can end: the
        epoch that a rank contributed and the number that it started last do not change. Answers
        that the controller only collects: while it does, it only waits for them or a time-out.
        """
        if rings := list(self._ring_ends(state)):
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

    def deliver(self, local: int, bit: int) -> tuple[int, int]:
        found = self.delivered.get((local, bit))
        if found is None:
            value, message = self.locals.values[local], self.network.values[bit]
            if isinstance(value, RankLocal):
                found = self._rank_step(value, rank_machine.receive(value.state, message))  # type: ignore[arg-type]
            elif isinstance(value, ControllerLocal):
                step = self.machine.receive(value.state, message)
                found = self._step(value._replace(state=step.state), step.messages)
            else:
                found = self._step(*switch_machine.receive(value, message))
            self.delivered[local, bit] = found
        return found

    def _step(self, value: Any, messages: tuple[m.Message, ...]) -> tuple[int, int]:
        mask = self.network.mask(messages)
        for message in self.network.values[len(self.receivers) :]:
            if isinstance(message, self.collected_kinds):
                self.collected |= 1 << len(self.receivers)
            self.receivers.append(self._receiver(message))
        return self.locals.number(value), mask

    def _receiver(self, message: Any) -> int:
        if isinstance(message, actors.TO_RANK):
            rank = message.rank if hasattr(message, "rank") else message.receiver
            return self.places.index((message.job, rank))
        return self.switch_at if isinstance(message, actors.TO_SWITCH) else self.controller_at

    def _rank_step(self, before: RankLocal, step: rank_machine.Step) -> tuple[int, int]:
        """Store the way of an AllReduce when it begins and when it is decided."""
        assert before.state is not None
        old, new = before.state, step.state
        ways = {way.number: way for way in before.ways}
        if old.phase is Phase.IDLE and new.started > old.started:
            began = "I" if old.agreement.view.is_allowed(old.number) else "R"
            ways[new.number] = Ways(new.number, began, "-")
        if new.number > old.number and new.last_min_epoch is not None:
            ways[old.number] = ways[old.number]._replace(ended="I")
        if new.phase is Phase.RING:
            ways[new.number] = ways[new.number]._replace(ended="R")
        last = tuple(way for number, way in sorted(ways.items()) if number >= new.number - 1)
        return self._step(RankLocal(new, last), step.messages)

    def own_events_of(self, local: int) -> list[OwnEvent]:
        """Return the events of an actor that need no message."""
        found = self.own_events.get(local)
        if found is None:
            value = self.locals.values[local]
            if isinstance(value, RankLocal):
                found = [] if value.state is None else list(self._rank_events(value))
            elif isinstance(value, ControllerLocal):
                found = [] if value.state is None else list(self._controller_events(value))
            else:
                found = [] if value is None else list(self._switch_events(value))
            self.own_events[local] = found
        return found

    def _rank_events(self, local: RankLocal) -> Iterator[OwnEvent]:
        state = local.state
        assert state is not None
        is_idle = state.phase is Phase.IDLE and state.number < self.config.numbers
        if is_idle and state.agreement.can_start:
            yield (*self._rank_step(local, rank_machine.start(state)), "start", False)
        if self.config.early is None:
            return
        if state.phase is Phase.INC:
            yield (*self._rank_step(local, rank_machine.vote(state)), "no result in time", True)
        if isinstance(state.agreement, TwoPhaseAgreement) and state.agreement.locked:
            step = rank_machine.time_out_agreement(state)
            yield (*self._rank_step(local, step), "controller is silent", True)

    def _controller_events(self, local: ControllerLocal) -> Iterator[OwnEvent]:
        config, state = self.config, local.state
        is_retry = local.proposed > 0 and not state.is_stable and local.tries < config.tries
        if state.can_propose and (is_retry or state.is_stable):
            proposed = local.proposed + (not is_retry)
            if proposed <= len(config.plans):
                plans = job_plans(config.plans[proposed - 1], config.sizes)
                step = self.machine.propose(state, plans)
                tries = local.tries + 1 if is_retry else 1
                yield (
                    *self._step(ControllerLocal(step.state, proposed, tries), step.messages),
                    "propose",
                    False,
                )
        step = self.machine.time_out(state)
        yield (*self._step(local._replace(state=step.state), step.messages), "time out", True)
        if config.fault in ("loss", "switch"):
            step = self.machine.resend(state)
            yield (*self._step(local._replace(state=step.state), step.messages), "resend", True)

    def _switch_events(self, state: switch_machine.SwitchState) -> Iterator[OwnEvent]:
        if not state.token:
            yield (*self._step(*switch_machine.hello(state)), "hello", True)
        if self.config.early is not None:
            for running in state.running:
                step = switch_machine.expire(state, running.job)
                yield (*self._step(*step), f"lease of {running.job} ends", True)

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

    def ring_ends_of(self, key: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
        """Return rank, next local state, messages and record of each ring that may end."""
        if key not in self.ring_ends:
            self.ring_ends[key] = list(self._compute_ring_ends(key))
        return self.ring_ends[key]

    def _compute_ring_ends(self, key: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
        ranks = [self.locals.values[local] for local in key[:-1]]
        record = self.rings.values[key[-1]]  # number and smallest epoch of the last ring
        for offset, local in enumerate(ranks):
            state = local.state
            if state is None or state.phase is not Phase.RING:
                continue
            if record is None or record[0] != state.number:
                states = [other.state for other in ranks]
                if not all(
                    s and s.phase is Phase.RING and s.number == state.number for s in states
                ):
                    continue
                record = (state.number, min(s.contributed for s in states))
            step = rank_machine.complete_ring(state, record[1])
            yield (offset, *self._rank_step(local, step), self.rings.number(record))

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
            found = self.obsolete[local, bit] = is_obsolete(value, message)
        return found

    # --- symmetry: the two ranks of a job are interchangeable ---------------------------------

    def canonical(self, state: State) -> State:
        """Return one state of those that differ by exchanges of the two ranks of a job."""
        first = 0
        for index, job in enumerate(self.jobs):
            size = self.config.sizes[job]
            if size == 2:
                left, right = state[first], self._swap(state[first + 1], index)
                if left > right:
                    state = self._exchanged(state, first, index)
                elif left == right:
                    state = min(state, self._exchanged(state, first, index))
            first += size
        return state

    def _exchanged(self, state: State, first: int, index: int) -> State:
        swap = self._swap
        return (
            *state[:first],
            swap(state[first + 1], index),
            swap(state[first], index),
            *state[first + 2 : self.controller_at],
            swap(state[self.controller_at], index),
            swap(state[self.switch_at], index),
            *state[self.ring_at : -1],
            self._swapped_set(state[-1], index),
        )

    def _swap(self, local: int, index: int) -> int:
        found = self.swaps.get((local, index))
        if found is None:
            value, job = self.locals.values[local], self.jobs[index]
            if isinstance(value, RankLocal):
                swapped: Any = actors.swapped_rank(value, job)
            elif isinstance(value, ControllerLocal):
                swapped = actors.swapped_controller(value, job)
            else:
                swapped = actors.swapped_switch(value, job)
            found = self.swaps[local, index] = self.locals.number(swapped)
        return found

    def _swapped_set(self, mask: int, index: int) -> int:
        found = self.swapped_sets.get((mask, index))
        if found is None:
            job = self.jobs[index]
            messages = [self.network.values[bit] for bit in self.network.bits(mask)]
            swapped = tuple(actors.swapped_message(message, job) for message in messages)
            _, found = self._step(None, swapped)
            self.swapped_sets[mask, index] = found
        return found
