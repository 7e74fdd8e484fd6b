"""Steps of single actors of a configuration, each computed once by the machines of the core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from presage.collectives.core import messages as m
from presage.collectives.core import rank as rank_machine
from presage.collectives.core import switch as switch_machine
from presage.collectives.core.rank import Phase
from presage.collectives.core.two_phase import TwoPhaseAgreement
from tests.collectives.explorer import actors
from tests.collectives.explorer.actors import ControllerLocal, Interned, Network, RankLocal, Ways
from tests.collectives.explorer.configuration import Configuration, job_plans
from tests.collectives.explorer.protocols import CONTROLLERS

# Next local state, messages sent, name, and whether it is a time-out.
OwnEvent: TypeAlias = tuple[int, int, str, bool]


class LocalSteps:
    """Ranks, controller and switch of a configuration, with the steps of each."""

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
        kinds = (m.Ack, m.Done) if config.fault == "switch" else (m.Ack, m.Done, m.Admitted)
        self.collected_kinds: tuple[type, ...] = kinds if config.is_reduced else ()
        self.collected = 0  # messages of these kinds
        self.delivered: dict[tuple[int, int], tuple[int, int]] = {}
        self.own_events: dict[int, list[OwnEvent]] = {}
        self.ring_ends: dict[tuple[int, ...], list[tuple[int, int, int, int]]] = {}

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
        is_given_up = local.tries == config.tries
        if state.can_propose and (is_retry or state.is_stable or is_given_up):
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
