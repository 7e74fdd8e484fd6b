"""Gangs placed with and without regard to switches, for docs/benchmarks/gang_switches.md.

Run ``python -m benchmarks.gang_switches``: about 10 minutes on two cores.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tests.features.examples import features

from benchmarks.markdown import write_page
from presage.collectives.core.costs import Link
from presage.collectives.simulation.cluster_sharing import ClusterSharing
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.job import Job
from presage.schedulers.core.topology import Topology, Vertex
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.policies.gang.gang_policy import Gang
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.simulation import Simulation

PAGE = Path("docs/benchmarks/gang_switches.md")
RACKS, NODES = 8, 8
SLOTS = {"half of the racks": (1, 0) * 4, "all racks": (1,) * 8}  # slots of each rack
LOADS = (0.4, 0.7)  # mean share of the nodes that is in use
JOBS, SEEDS = 150, 10
LINK = Link(latency_s=5e-6, bandwidth_bytes_per_s=1.25e9)
# Step time by ring in seconds, and gradients in bytes: 24 to 60 % of a step is a ring of 4 nodes.
MODELS = ((0.5, 100_000_000), (0.8, 400_000_000), (1.0, 400_000_000), (2.0, 700_000_000))
T95 = 2.262  # of 9 degrees of freedom


class Case(NamedTuple):
    """One pair of simulations."""

    slots: str
    load: float
    seed: int


class Outcome(NamedTuple):
    """Mean job completion times, and step times over those by ring."""

    weighed_jct_s: float
    ignored_jct_s: float
    ring_jct_s: float
    weighed_users: int
    ignored_users: int


def main() -> None:
    """Simulate all cases and write the page."""
    cases = [Case(slots, load, seed) for slots in SLOTS for load in LOADS for seed in range(SEEDS)]
    with multiprocessing.Pool(2) as pool:
        found = {}
        for number, (case, outcome) in enumerate(pool.imap_unordered(_run, cases), 1):
            found[case] = outcome
            print(f"{number} of {len(cases)}: {case}", flush=True)
    write_page(PAGE, _page(found))


def _run(case: Case) -> tuple[Case, Outcome]:
    """Run one trace by ring, and with switches that placement ignores or weighs."""
    jobs, durations_s = _trace(case)
    known, unknown = _cluster(SLOTS[case.slots]), _cluster((0,) * RACKS)

    def run(cluster: Cluster, sharing: ClusterSharing | None) -> tuple[float, int]:
        world = TraceDurations(durations_s)
        simulation = Simulation(
            cluster, Gang(), Oracle(world, cluster), world, jobs, switch_sharing=sharing
        )
        simulation.run()
        jct_s = statistics.fmean(one.end_s - one.job.submit_s for one in simulation.results)
        return jct_s, len(simulation.jobs_on_switches)

    sharing = ClusterSharing(known.topology, LINK)
    (weighed_s, weighed), (ignored_s, ignored) = run(known, sharing), run(unknown, sharing)
    return case, Outcome(weighed_s, ignored_s, run(unknown, None)[0], weighed, ignored)


def _trace(case: Case) -> tuple[list[Job], dict[str, float]]:
    draws = random.Random(case.seed)
    known = features()
    sizes = [draws.choice((2, 3, 4, 4, 6, 8)) for _ in range(JOBS)]
    durations_s = {f"j{i:03}": draws.lognormvariate(0.0, 0.8) * 3600 for i in range(JOBS)}
    work_s = sum(s * d for s, d in zip(sizes, durations_s.values(), strict=True))
    gap_s = work_s / JOBS / (case.load * RACKS * NODES)
    jobs, now_s = [], 0.0
    for size, (name, duration_s) in zip(sizes, durations_s.items(), strict=True):
        step_s, gradient_bytes = draws.choice(MODELS)
        memory = replace(known.memory, gradient_bytes=gradient_bytes)
        jobs.append(
            Job(
                name, now_s, gpus=size, iterations=max(1, round(duration_s / step_s)),
                features=replace(known, memory=memory),
            )
        )  # fmt: skip
        now_s += draws.expovariate(1 / gap_s)
    return jobs, durations_s


def _cluster(slots: tuple[int, ...]) -> Cluster:
    nodes = [Vertex(f"n{i:02}", "node", (i,)) for i in range(RACKS * NODES)]
    racks = [
        Vertex(f"r{i}", "rack", tuple(nodes[NODES * i :][:NODES]), count)
        for i, count in enumerate(slots)
    ]
    return Cluster(
        tuple(Node(node.name, 1, "gpu", 2**34) for node in nodes),
        Topology(Vertex("all", "cluster", tuple(racks))),
    )


def _page(found: dict[Case, Outcome]) -> Iterator[str]:
    yield from f"""# Placement of gangs by the slots of switches, simulated

This benchmark compares placements by the policy `gang` with the slots of switches in its topology
(weighed) and without them (ignored). Written by `python -m benchmarks.gang_switches`.

There are {RACKS} racks of {NODES} nodes with one device each; a rack's switch has one slot or none.
{JOBS} gangs of 2 to 8 nodes arrive at random; a ring of 4 nodes takes 24 to 60 % of their steps. In
both cases `presage simulate --inc` computes step times from the slots. Figures are means of
{SEEDS} traces with 95 % intervals over traces.

| slots | load | JCT: weighed over ignored | ignored over ring | weighed over ring | \
gangs on switches: weighed | ignored |
|---|---:|---:|---:|---:|---:|---:|""".split("\n")
    for slots in SLOTS:
        for load in LOADS:
            rows = [one for case, one in found.items() if case[:2] == (slots, load)]
            pairs = (
                ("weighed_jct_s", "ignored_jct_s"), ("ignored_jct_s", "ring_jct_s"),
                ("weighed_jct_s", "ring_jct_s"),
            )  # fmt: skip
            ratios = [_interval([getattr(o, a) / getattr(o, b) for o in rows]) for a, b in pairs]
            users = [
                f"{statistics.fmean(getattr(o, name) for o in rows) / JOBS:.0%}"
                for name in ("weighed_users", "ignored_users")
            ]
            yield f"| {slots} | {load:.0%} | {' | '.join((*ratios, *users))} |"
    yield """
Weighing helps if some racks have slots and others have none. If all have one, the only choice is a
switch with fewer gangs. The cost counts a slot that is shared with one other gang as half a slot,
which spreads gangs more than necessary, and it does not depend on how much gangs communicate."""


def _interval(values: list[float]) -> str:
    half = T95 * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):.3f} ± {half:.3f}"


if __name__ == "__main__":
    main()
