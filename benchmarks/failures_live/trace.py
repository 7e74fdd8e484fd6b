"""Jobs and failures of benchmarks/failures_live, drawn by a seed; a model day lasts a minute."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from presage.features.graph.op_graph import OpGraph, OpNode
from presage.features.graph.step_memory import MemoryEstimate
from presage.features.hazard.outage import Outage
from presage.pipelines.importers.imported import Imported, Origin
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.faults.device_fault_model import DAY_S, parse_device_faults
from presage.schedulers.faults.fault import faults_to_outages

SEEDS = (1, 2, 3)
KIND, NODES, MEMORY_GIB = "t4", 8, 2.0  # one device on each node
MODEL_DAY_S = 60.0  # seconds of the benchmark in a day of the fault model
MTBF_DAYS, MTTR_DAYS, RATE_SPREAD = 1.5, 0.45, 1.5
FAULTS = f"mtbf={MTBF_DAYS},mttr={MTTR_DAYS},rate_spread={RATE_SPREAD}"
HISTORY_DAYS, LONGEST_RUN_DAYS = 10.0, 15.0
MODEL, STEP_S = "failures/steps", 0.2
JOBS, EVERY_S = 17, 8.0  # jobs of a trace, mean time between arrivals
SHORTEST_S, LONGEST_S = 15.0, 60.0  # run times without failures


@dataclass(frozen=True, slots=True)
class Submission:
    """Job of one device that is submitted ``after_s`` after the first; it writes no checkpoint."""

    job_id: str
    after_s: float
    iterations: int

    @property
    def run_s(self) -> float:
        """Time of all steps."""
        return self.iterations * STEP_S


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: jobs, and failures of nodes, in seconds since the first submission.

    Attributes
    ----------
    rates : tuple of float
        Relative failure rate of each node, with mean 1 over many nodes.
    history : tuple of Outage
        Outages before the start, at negative times; all nodes are up at the start.
    outages : tuple of Outage
        Outages to cause, by time.
    """

    jobs: tuple[Submission, ...]
    rates: tuple[float, ...]
    history: tuple[Outage, ...]
    outages: tuple[Outage, ...]


def draw_plan(seed: int) -> Plan:
    """Return the jobs and the failures of a seed."""
    model, nodes = parse_device_faults(FAULTS), cluster()
    until_s = (HISTORY_DAYS + LONGEST_RUN_DAYS) * DAY_S
    history, outages = list[Outage](), list[Outage]()
    for one in sorted(faults_to_outages(model.draw(nodes, until_s, seed=seed)), key=_begin):
        from_s, end_s = (
            (at_s / DAY_S - HISTORY_DAYS) * MODEL_DAY_S for at_s in (one.from_s, one.until_s)
        )
        if from_s < 0:
            history.append(Outage(one.node, from_s, min(end_s, 0.0)))
        else:
            outages.append(Outage(one.node, from_s, end_s))
    rates = tuple(model.device_rates(NODES, seed=seed).tolist())
    return Plan(tuple(draw_jobs(seed)), rates, tuple(history), tuple(outages))


def draw_jobs(seed: int) -> list[Submission]:
    """Return the jobs of a seed, by arrival."""
    draw, at_s, found = random.Random(seed), 0.0, []
    for number in range(JOBS):
        iterations = round(draw.uniform(SHORTEST_S, LONGEST_S) / STEP_S)
        found.append(Submission(f"job-{number:02}", at_s, iterations))
        at_s += draw.expovariate(1 / EVERY_S)
    return found


def cluster(nodes: int = NODES) -> Cluster:
    """Return the cluster."""
    memory_bytes = round(MEMORY_GIB * 2**30)
    return Cluster(tuple(Node(node_name(i), 1, KIND, memory_bytes) for i in range(nodes)))


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"n{number}"


def write_tables(folder: Path) -> None:
    """Write tables with the step time of the jobs, for the forecasts of both sides."""
    made = Imported(Origin("failures_live", "this benchmark", "none"))
    operator = OpNode("test.MatMul", "MatMul", "forward", 100, 50, 0, 1_000_000, 10_000)
    graph = OpGraph((operator,), 1000, 9000, 784, MemoryEstimate(4000, 4000, 0, 1000, 0, 0))
    made.job(
        MODEL, graph=graph, name="steps", family="failures", precision="fp32", batch_size=1,
        optimizer="sgd",
    )  # fmt: skip
    made.execution(MODEL, KIND, campaign="failures_live", step_time_median_s=STEP_S)
    made.write(folder)


def _begin(outage: Outage) -> float:
    return outage.from_s
