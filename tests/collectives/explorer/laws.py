"""Laws that hold in every reachable state, and a report of one exploration."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from presage.collectives.core.messages import Refusal, RefusalReason
from tests.collectives.explorer.actors import RankLocal
from tests.collectives.explorer.configuration import Configuration
from tests.collectives.explorer.independence import first_blocked
from tests.collectives.explorer.search import Event, Graph, State, explore
from tests.collectives.explorer.system import CONTROLLER, SWITCH, SharedSwitch

LAWS = {
    1: "no AllReduce number is split between the switch and ring among the ranks of a job",
    2: "never more jobs on a switch than slots",
    3: "from every state the living jobs can finish",
    4: "with the controller dead every living job goes on",
    5: "no rank waits for the switch, the controller or another job",
    6: "a grant follows its revocation: the switch has no reason to refuse",
    7: "a change of decisions can always be completed",
}


@dataclass
class Report:
    """Result of the exploration of one configuration."""

    name: str
    states: int
    transitions: int
    seconds: float
    law: int | None = None
    path: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        size = f"{self.states:9,} states {self.transitions:11,} transitions {self.seconds:6.1f} s"
        verdict = (
            "all laws hold" if self.law is None else f"law {self.law} broken: {LAWS[self.law]}"
        )
        return "\n    ".join([f"{self.name:42} {size}  {verdict}", *self.path])


class LawfulSwitch(SharedSwitch):
    """System whose states are checked."""

    def __init__(self, config: Configuration) -> None:
        super().__init__(config)
        self.split: dict[tuple[int, ...], bool] = {}
        self.overfull: dict[int, bool] = {}
        self.forbidden: dict[int, bool] = {}

    def violation(self, state: State) -> str | None:
        first = 0
        for job in self.jobs:
            ranks = state[first : first + self.config.sizes[job]]
            if ranks not in self.split:
                self.split[ranks] = self._is_split([self.locals.values[r] for r in ranks])
            if self.split[ranks]:
                return "1"
            first += len(ranks)
        switch = state[self.switch_at]
        if switch not in self.overfull:
            value = self.locals.values[switch]
            self.overfull[switch] = value is not None and len(value.running) > value.slots
        if self.overfull[switch]:
            return "2"
        return "6" if self.config.is_exclusive and self._has_forbidden(state[-1]) else None

    @staticmethod
    def _is_split(ranks: list[RankLocal]) -> bool:
        began: dict[int, set[str]] = {}
        ended: dict[int, set[str]] = {}
        for local in ranks:
            for way in local.ways:
                began.setdefault(way.number, set()).add(way.began)
                ended.setdefault(way.number, set()).update({way.ended} - {"-"})
        return any(len(ways) > 1 for ways in (*began.values(), *ended.values()))

    def _has_forbidden(self, mask: int) -> bool:
        """Return whether a refusal is under way that can have no good reason."""
        found = self.forbidden.get(mask)
        if found is None:
            messages = (self.network.values[bit] for bit in self.network.bits(mask))
            refusals = [message for message in messages if isinstance(message, Refusal)]
            found = self.forbidden[mask] = any(
                self.config.is_calm or refusal.reason is RefusalReason.BUSY for refusal in refusals
            )
        return found

    # --- goals --------------------------------------------------------------------------------

    def is_finished(self, state: State, job: str) -> bool:
        """Return whether all ranks of a job have ended all AllReduces, or one has crashed."""
        at = [position for position, place in enumerate(self.places) if place[0] == job]
        if any(self.is_dead(state, position) for position in at):
            return True
        numbers = [self.local(state, position).state.number for position in at]
        return all(number == self.config.numbers for number in numbers)

    def are_finished(self, state: State) -> bool:
        return all(self.is_finished(state, job) for job in self.jobs)

    def is_settled(self, state: State) -> bool:
        """Return whether the controller has ended its last change, or a crash excuses it."""
        last = self.config.plans[-1] if self.config.plans else {}
        required = [p for p, place in enumerate(self.places) if place[0] in last]
        if any(self.is_dead(state, p) for p in (*required, self.controller_at, self.switch_at)):
            return True
        controller = self.local(state, self.controller_at)
        are_all = controller.proposed == len(self.config.plans)
        is_given_up = controller.tries == self.config.tries and controller.state.can_propose
        return are_all and bool(controller.state.is_stable or is_given_up)


def check(config: Configuration, *, limit: int = 3_000_000) -> Report:
    """Explore a configuration and check all laws."""
    started = time.monotonic()
    system = LawfulSwitch(config)
    graph = explore(system, limit=limit)
    law, path = _broken(system, graph)
    seconds = time.monotonic() - started
    shown = [_text(system, event) for event in path]
    return Report(config.name, len(graph.states), len(graph.sources), seconds, law, shown)


def _broken(system: LawfulSwitch, graph: Graph) -> tuple[int | None, list[Event]]:
    if graph.violation:
        return int(graph.violation), graph.path(len(graph.states) - 1)
    jobs = range(len(system.jobs))
    goals = {3: system.are_finished, 7: system.is_settled}
    for law, is_goal in goals.items():
        reached = graph.can_reach(is_goal, [*jobs, CONTROLLER, SWITCH])
        if not reached.all():
            return law, graph.path(int(reached.argmin()))
    if system.config.early is None:  # without time-outs of ranks, they do wait
        return None, []
    blocked = first_blocked(system, graph)
    if blocked is None:
        return None, []
    is_orphaned = system.is_dead(graph.states[blocked], system.controller_at)
    return 4 if is_orphaned else 5, graph.path(blocked)


def _text(system: LawfulSwitch, event: Event) -> str:
    """Return an event with the name of its actor."""
    names = [f"rank {rank} of {job}" for job, rank in system.places] + ["controller", "switch"]
    if isinstance(event[-1], int):
        return f"{names[event[-1]]}: {event[0]}"
    return " ".join(map(str, event))
