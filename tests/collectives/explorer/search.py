"""Breadth-first search over all reachable states, and reachability of goals within them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

State: TypeAlias = tuple[int, ...]
Event: TypeAlias = tuple[object, ...]


class System(Protocol):
    """What is explored."""

    def initial(self) -> State: ...
    def successors(self, state: State) -> Iterator[tuple[State, int, Event]]:
        """Yield the next state, the code of the actor, and the event."""
        ...

    def violation(self, state: State) -> str | None:
        """Return the law that a state breaks."""
        ...


@dataclass
class Graph:
    """Reachable states, in breadth-first order, with the edges between them."""

    states: list[State] = field(default_factory=list)
    parents: list[tuple[int, Event]] = field(default_factory=list)
    sources: array[int] = field(default_factory=lambda: array("i"))
    targets: array[int] = field(default_factory=lambda: array("i"))
    actors: array[int] = field(default_factory=lambda: array("b"))
    violation: str | None = None  # of the last state: the search ends there

    def path(self, index: int) -> list[Event]:
        """Return the events that lead to a state by the shortest way."""
        events: list[Event] = []
        while index:
            index, event = self.parents[index]
            events.append(event)
        return events[::-1]

    def can_reach(
        self, is_goal: Callable[[State], bool], actors: Iterable[int]
    ) -> NDArray[np.bool_]:
        """Return for each state whether a goal is reachable by events of these actors only."""
        found = np.fromiter(map(is_goal, self.states), bool, len(self.states))
        kept = np.isin(np.frombuffer(self.actors, np.int8), list(actors))
        sources = np.frombuffer(self.sources, np.int32)[kept]
        targets = np.frombuffer(self.targets, np.int32)[kept]
        while True:
            new = sources[found[targets] & ~found[sources]]
            if not len(new):
                return found
            found[new] = True


class TooManyStatesError(Exception):
    """The configuration is larger than its limit."""


def explore(system: System, *, limit: int) -> Graph:
    """Return all reachable states, or those up to the first one that breaks a law."""
    first = system.initial()
    graph = Graph([first], [(0, ())], violation=system.violation(first))
    indices = {first: 0}
    position = 0
    while position < len(graph.states) and graph.violation is None:
        for state, actor, event in system.successors(graph.states[position]):
            index = indices.get(state)
            if index is None:
                index = indices[state] = len(graph.states)
                graph.states.append(state)
                graph.parents.append((position, event))
                graph.violation = system.violation(state)
                if graph.violation:
                    return graph
            graph.sources.append(position)
            graph.targets.append(index)
            graph.actors.append(actor)
        position += 1
        if len(graph.states) > limit:
            raise TooManyStatesError(f"more than {limit} states")
    return graph
