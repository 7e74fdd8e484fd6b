"""Plans of benchmarks/gang: cost and time of optimisers on drawn gangs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
from tests.schedulers.policies.gang.gang_enumeration import Enumeration

from benchmarks.gang.annealing import Annealing
from presage.schedulers.core.topology import Topology, Vertex
from presage.schedulers.policies.gang.distances import Distances
from presage.schedulers.policies.gang.gang_policy import OPTIMISERS
from presage.schedulers.policies.gang.optimisers.optimiser import Optimiser
from presage.schedulers.policies.gang.optimisers.tree_optimum import TreeOptimum
from presage.schedulers.policies.gang.problem import Plan, Problem, Reduce, Weights

NODE = 8
GANGS = 30  # small ones
SMALL_STEPS = 20_000
STEPS = (500_000, 5_000_000)  # of annealing: the longer run shows what the shorter one misses
SIZES = ((64, 1024), (64, 600), (256, 1024), (8, 1024))  # members, free devices of 1,024
BUSY = 0.6  # fraction of the devices with jobs
ROUNDS = 5
LONG_S = 1.0  # longer plans are timed once


@dataclass(frozen=True, slots=True)
class Large:
    """One large gang under all optimisers."""

    members: int
    free: int
    reduce: Reduce
    alike: bool


@dataclass(frozen=True, slots=True)
class Small:
    """``GANGS`` gangs of 4 on 8 free devices of 16, on two nodes, under all optimisers."""

    reduce: Reduce
    alike: bool


LARGE = [
    Large(members, free, reduce, alike)
    for members, free in SIZES
    for alike in (True, False)
    for reduce in (("mean", "max") if (members, free) == (64, 600) else ("mean",))
]
SMALL = [Small(reduce, alike) for reduce in ("mean", "max") for alike in (True, False)]


def tree(nodes: int, racks: int) -> Topology:
    """Return nodes of two sockets with two NVLink pairs each, in racks; two spines for four."""
    size = nodes // racks
    of_racks = tuple(
        Vertex(f"r{r}", "rack", tuple(_node(n) for n in range(r * size, (r + 1) * size)))
        for r in range(racks)
    )
    half = racks // 2
    spines = (Vertex("s0", "spine", of_racks[:half]), Vertex("s1", "spine", of_racks[half:]))
    return Topology(Vertex("all", "cluster", spines if racks >= 4 else of_racks))


def _node(number: int) -> Vertex:
    first = number * NODE
    sockets = []
    for s, socket in enumerate((first, first + NODE // 2)):
        pairs = tuple(
            Vertex(f"n{number}-{s}-{p}", "nvlink", (socket + 2 * p, socket + 2 * p + 1))
            for p in range(NODE // 4)
        )
        sockets.append(Vertex(f"n{number}-{s}", "numa", pairs))
    return Vertex(f"n{number}", "node", tuple(sockets))


def draw_problem(
    topology: Topology, members: int, free: int, reduce: Reduce, *, alike: bool, seed: int
) -> Problem:
    """Return a problem: ``BUSY`` of the devices have jobs, with a degradation from Beta(1, 3)."""
    rng = np.random.default_rng(seed)
    rank = topology.depth_first.argsort()
    some = topology.depth_first[np.sort(rank[rng.choice(topology.devices, free, replace=False)])]
    degradation = rng.beta(1, 3, (1 if alike else members, free)) * (rng.random(free) < BUSY)
    return Problem(
        np.broadcast_to(degradation, (members, free)),
        Distances(topology, some),
        Weights(reduce=reduce),
    )


def searches(*, alike: bool, steps: tuple[int, ...]) -> dict[str, Optimiser]:
    """Return the compared searches by name; annealing by its steps."""
    found = {name: one for name, one in OPTIMISERS.items() if name != "tree" or alike}
    return found | {f"annealing, {count:,} steps": Annealing(count) for count in steps}


def small(case: Small) -> dict[str, Any]:
    """Return, by optimiser, mean excess over the optimum, CPU time, and how often it was found."""
    topology = tree(2, 2)
    above: dict[str, list[float]] = {}
    took: dict[str, list[float]] = {}
    for seed in range(GANGS):
        problem = draw_problem(topology, 4, 8, case.reduce, alike=case.alike, seed=seed)
        best = planned(problem, Enumeration(), seed).cost
        for name, one in searches(alike=case.alike, steps=(SMALL_STEPS,)).items():
            _, cost, took_ms = planned(problem, one, seed)
            above.setdefault(name, []).append(cost / best - 1)
            took.setdefault(name, []).append(took_ms)
    return {
        name: {
            "above": mean(values), "worst": max(values),
            "found": sum(value < 1e-9 for value in values), "ms": median(took[name]),
        }
        for name, values in above.items()
    }  # fmt: skip


def large(case: Large) -> dict[str, Any]:
    """Return, by optimiser, cost, its two terms and CPU time; and a lower bound."""
    problem = draw_problem(
        tree(128, 8), case.members, case.free, case.reduce, alike=case.alike, seed=1
    )  # fmt: skip
    found: dict[str, Any] = {}
    for name, one in searches(alike=case.alike, steps=STEPS).items():
        plan, cost, took_ms = planned(problem, one, 0)
        rounds = [took_ms]
        if took_ms < 1000 * LONG_S:
            rounds += [planned(problem, one, 0).took_ms for _ in range(ROUNDS - 1)]
        found[name] = {
            "cost": cost, "I": float(problem.interference(plan[None])[0]),
            "C": float(problem.communication(plan[None])[0]), "ms": median(rounds),
        }  # fmt: skip
    return found | {"bound": bound(problem)}


def bound(problem: Problem) -> float:
    """Return the optimum if each device had the degradation of its least affected member."""
    least = np.broadcast_to(problem.degradation.min(axis=0), problem.degradation.shape)
    relaxed = Problem(least, problem.distances, problem.weights)
    return planned(relaxed, TreeOptimum(), 0).cost


class Planned(NamedTuple):
    """Plan with its cost and processor time in milliseconds."""

    plan: Plan
    cost: float
    took_ms: float


def planned(problem: Problem, optimiser: Optimiser, seed: int) -> Planned:
    """Return the plan of an optimiser with a seed."""
    rng = np.random.default_rng(seed)
    begin_s = time.process_time()
    plan = optimiser.plan(problem, rng)
    took_ms = 1000 * (time.process_time() - begin_s)
    return Planned(plan, float(problem.costs(plan[None])[0]), took_ms)
