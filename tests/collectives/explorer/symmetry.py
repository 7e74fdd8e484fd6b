"""Symmetry: the two ranks of a job are interchangeable."""

from __future__ import annotations

from typing import Any

from tests.collectives.explorer import actors
from tests.collectives.explorer.actors import ControllerLocal, RankLocal
from tests.collectives.explorer.configuration import Configuration
from tests.collectives.explorer.local_steps import LocalSteps
from tests.collectives.explorer.search import State


class Symmetry(LocalSteps):
    """States up to exchanges of the two ranks of a job.

    The machines compare ranks only for equality, so an exchange of two ranks maps reachable states
    to reachable states, and laws do not distinguish them.
    """

    def __init__(self, config: Configuration) -> None:
        super().__init__(config)
        self.swaps: dict[tuple[int, int], int] = {}
        self.swapped_sets: dict[tuple[int, int], int] = {}

    def canonical(self, state: State) -> State:
        """Return one state of those that differ by exchanges of the two ranks of a job."""
        if not self.config.is_reduced:
            return state
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
