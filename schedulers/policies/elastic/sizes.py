"""Sizes of jobs: devices go where they raise the rate of completions most."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

_LEAST_S = 1e-6  # remaining time of a job that is about to end


class Increment(NamedTuple):
    """Devices that a job gets at once, if it has all earlier increments.

    Attributes
    ----------
    density : float
        Gain in the value of the job's size, per device.
    gpus : int
        Number of devices that the job has with it.
    """

    density: float
    gpus: int


def completion_rate(run_s: float) -> float:
    """Return the value of a size by the run time of the whole job: its rate of completion."""
    return 1.0 / max(run_s, _LEAST_S)


def increments(
    sizes: Sequence[int], value: Callable[[int], float], requested: int, *, nothing: float = 0.0
) -> tuple[Increment, ...]:
    """Return the increments of a job: its fewest devices, then those of falling density.

    The later ones are the upper concave hulls of the values up to the job's request, and beyond. A
    size that is worth no more than a smaller one is in no increment, whatever curve was predicted.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of devices on which the job may run, ascending.
    value : callable
        Value of a number of devices.
    nothing : float
        Value of no devices.
    """
    points = [(0, nothing), *((size, value(size)) for size in sizes)]
    hull = points[:1]
    kept = 2  # points that no later one replaces: no devices, and the fewest
    for size, worth in points[1:]:
        if len(hull) > 1 and worth <= hull[-1][1]:
            continue
        if size > requested >= hull[-1][0]:
            kept = max(kept, len(hull))
        while len(hull) > kept and _is_convex(hull[-2], hull[-1], (size, worth)):
            hull.pop()
        hull.append((size, worth))
    return tuple(Increment(_density(before, after), after[0]) for before, after in pairwise(hull))


def _is_convex(
    first: tuple[int, float], middle: tuple[int, float], last: tuple[int, float]
) -> bool:
    """Return whether the density rises at the middle one; equal ones differ by rounding errors."""
    return _density(middle, last) > _density(first, middle) * (1 + 1e-9)


def _density(before: tuple[int, float], after: tuple[int, float]) -> float:
    return (after[1] - before[1]) / (after[0] - before[0])


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job could use.

    Attributes
    ----------
    rank : tuple
        Class and priority; smaller ones are served first, whatever the densities are.
    left : float
        Fraction of the job that is not done; divides the densities.
    requested : int
        Number of devices beyond which the job only gets what no job uses up to its request.
    """

    rank: tuple[bool, int]
    left: float
    increments: tuple[Increment, ...]
    requested: int


def allocate(demands: Sequence[Demand], devices: int) -> list[int]:
    """Return the number of devices of each job; 0 for a job that has to wait.

    The next increment is that of the first class and priority with the highest density, and of the
    first job where these are equal. All increments up to the jobs' requests precede those beyond.
    One that does not fit is left out, with the job's later ones.
    """
    given = [0] * len(demands)
    queue = [
        (*_order(demand, 0), index, 0) for index, demand in enumerate(demands) if demand.increments
    ]
    heapq.heapify(queue)
    while queue and devices:
        _, _, _, index, number = queue[0]
        demand, following = demands[index], number + 1
        gpus = demand.increments[number].gpus
        if gpus - given[index] > devices:
            heapq.heappop(queue)
            continue
        devices -= gpus - given[index]
        given[index] = gpus
        if following < len(demand.increments):
            heapq.heapreplace(queue, (*_order(demand, following), index, following))
        else:
            heapq.heappop(queue)
    return given


def _order(demand: Demand, number: int) -> tuple[bool, tuple[bool, int], float]:
    density, gpus = demand.increments[number]
    beyond = number > 0 and gpus > demand.requested
    return beyond, demand.rank, -density / max(demand.left, _LEAST_S)
