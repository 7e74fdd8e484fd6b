"""Whether a job can finish by itself: without switch, controller, and other jobs (laws 4 and 5).

That depends only on the states of its ranks, on its ring, and on the messages between its ranks.
These are few, and their graph is searched with time-outs at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.collectives.explorer import actors
from tests.collectives.explorer.search import Event, Graph, State, explore
from tests.collectives.explorer.system import SharedSwitch


class LonelyJob:
    """One job of a system, in all states that it has in the graph of the system."""

    def __init__(self, system: SharedSwitch, index: int, seeds: list[State]) -> None:
        self.system = system
        self.index = index
        self.seeds = seeds
        sizes = [system.config.sizes[job] for job in system.jobs]
        self.first = sum(sizes[:index])
        self.size = sizes[index]

    def initial(self) -> State:
        return ()

    def violation(self, state: State) -> str | None:
        return None

    def successors(self, state: State) -> Iterator[tuple[State, int, Event]]:
        if not state:
            yield from ((seed, 0, ()) for seed in self.seeds)
            return
        ranks, ring, mask = state[: self.size], state[-2], state[-1]
        for offset, local in enumerate(ranks):
            for new, sent, _, _ in self.system.own_events_of(local):
                yield self._after(state, offset, new, ring, mask, sent), 1, ()
        for offset, new, sent, record in self.system.ring_ends_of((*ranks, ring)):
            yield self._after(state, offset, new, record, mask, sent), 1, ()
        for bit in self.system.network.bits(mask):
            offset = self.system.receivers[bit] - self.first
            new, sent = self.system.deliver(ranks[offset], bit)
            yield self._after(state, offset, new, ring, mask & ~(1 << bit), sent), 1, ()

    def _after(self, state: State, offset: int, new: int, ring: int, mask: int, sent: int) -> State:
        ranks = list(state[: self.size])
        ranks[offset] = new
        return (*ranks, ring, mask | own_messages(self.system, self.index, sent))

    def is_finished(self, state: State) -> bool:
        if not state:
            return True
        locals_ = [self.system.locals.values[local] for local in state[: self.size]]
        return all(local.state.number == self.system.config.numbers for local in locals_)


def own_messages(system: SharedSwitch, index: int, mask: int) -> int:
    """Return the messages between the ranks of a job."""
    job, kept = system.jobs[index], 0
    for bit in system.network.bits(mask):
        message = system.network.values[bit]
        if isinstance(message, actors.RELIABLE) and message.job == job:
            kept |= 1 << bit
    return kept


def first_blocked(system: SharedSwitch, graph: Graph) -> int | None:
    """Return the first state in which some living job cannot finish by its own events."""
    blocked = []
    first = 0
    for index, job in enumerate(system.jobs):
        size, ring_at = system.config.sizes[job], system.ring_at + index
        masks: dict[int, int] = {}
        seeds: dict[State, int] = {}
        for position, state in enumerate(graph.states):
            mask = state[-1]
            if mask not in masks:
                masks[mask] = own_messages(system, index, mask)
            ranks = state[first : first + size]
            if any(system.is_dead(state, first + offset) for offset in range(size)):
                continue
            seeds.setdefault((*ranks, state[ring_at], masks[mask]), position)
        lonely = LonelyJob(system, index, list(seeds))
        own = explore(lonely, limit=10**7)
        reached = own.can_reach(lonely.is_finished, [1])
        for state, is_reached in zip(own.states, reached, strict=True):
            if state in seeds and not is_reached:
                blocked.append(seeds[state])
        first += size
    return min(blocked, default=None)
