"""Replay buffer of the published policy, with a dynamic batch (L7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

BatchMode = Literal["period", "all"]


class Transition(NamedTuple):
    """Choice of one GPU: state, action, reward and next state, and the action's log probability."""

    state: NDArray[np.float32]
    action: int
    reward: float
    next_state: NDArray[np.float32]
    log_probability: float


class Replay:
    """Bounded buffer: the oldest transitions overflow.

    Parameters
    ----------
    capacity : int
        Largest number of transitions.
    """

    def __init__(self, capacity: int) -> None:
        self._transitions: deque[Transition] = deque(maxlen=capacity)
        self._period = 0

    def __len__(self) -> int:
        return len(self._transitions)

    def add(self, transitions: Iterable[Transition]) -> None:
        """Add the transitions of one scheduling period."""
        before = list(transitions)
        self._period = len(before)
        self._transitions.extend(before)

    def batch(self, mode: BatchMode, rng: np.random.Generator) -> list[Transition]:
        """Return as many random transitions as the last period had, or the whole buffer."""
        if mode == "all":
            return list(self._transitions)
        count = min(self._period, len(self._transitions))
        return [
            self._transitions[i]
            for i in rng.choice(len(self._transitions), count, replace=False).tolist()
        ]
