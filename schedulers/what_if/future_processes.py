"""Simulated futures, one after the other or in several processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from presage.errors import PresageError
from presage.schedulers.what_if.local_forecaster import NeedsForecasterError
from presage.schedulers.what_if.simulated_futures import FutureSimulator, Pair, Scenario
from presage.system.processes.worker_processes import done_by_workers

PROCESSES = 2  # of an answer
START_S = 1.0  # of simulations from which processes are started: a start takes half a second


@dataclass(frozen=True, slots=True)
class Deadline:
    """Whether a time of the monotonic clock has passed, in this process or in another one."""

    at_s: float

    def __call__(self) -> bool:
        """Return whether the time has passed."""
        return time.monotonic() > self.at_s


def simulated_futures(
    simulator: FutureSimulator,
    scenarios: Sequence[Scenario],
    should_stop: Callable[[], bool],
    samples: int,
    processes: int,
) -> Iterator[list[Pair]]:
    """Yield the complete futures, each with a pair for each scenario.

    They do not depend on the number of processes. Processes are started if more than ``START_S``
    seconds of simulations remain after the first future. Futures whose forecasts only this process
    can ask for are simulated here.

    Raises
    ------
    PresageError
        A process died.
    """
    begin_s = time.monotonic()
    first = simulator.simulate(scenarios, should_stop, 0)
    if first is None:
        return
    yield first
    left = list(range(1, samples))
    workers = min(processes, len(left))
    if workers > 1 and (time.monotonic() - begin_s) * len(left) > START_S:
        remote = _Simulation(simulator, tuple(scenarios), should_stop)
        numbers, left = left, []
        for position, found in done_by_workers(remote, numbers, workers):
            if isinstance(found, PresageError):
                raise found
            if isinstance(found, NeedsForecasterError):
                left.append(numbers[position])
            elif found is not None:
                yield found
    for number in left:
        pairs = simulator.simulate(scenarios, should_stop, number)
        if pairs is None:
            return
        yield pairs


@dataclass(frozen=True, slots=True)
class _Simulation:
    """Simulation of a future by its number, in another process."""

    simulator: FutureSimulator
    scenarios: tuple[Scenario, ...]
    should_stop: Callable[[], bool]

    def __call__(self, number: int) -> list[Pair] | NeedsForecasterError | None:
        try:
            return self.simulator.simulate(self.scenarios, self.should_stop, number)
        except NeedsForecasterError as error:
            return error
