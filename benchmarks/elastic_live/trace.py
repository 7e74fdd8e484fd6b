"""Traces of benchmarks/elastic_live: models, arrivals, run times and sizes, drawn by a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic_live.devices import (
    DEVICES,
    DEVICES_OF_A_NODE,
    KIND,
    MEMORY_GIB,
    NODES,
    Size,
)
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.speedup import fewest_nodes
from presage.schedulers.simulator.ground_truth.measurements import Measurements
from presage.schedulers.simulator.ground_truth.model_measurements import read_measurements

POLICY = "elastic:hold_s=10"
SEEDS = (1, 2, 3)
# The largest batches that Pollux measured: one that scales over nodes, one that does so well, and
# one that does only within a node.
MODELS = ("pollux/imagenet/b200", "pollux/cifar10/b1024", "pollux/bert/b12")
ELASTIC, FIXED = 6, 2  # jobs of a trace
EVERY_S = 12.0  # mean time between arrivals
SHORTEST_S, LONGEST_S = 30.0, 150.0  # run times on the requested devices


@dataclass(frozen=True, slots=True)
class Submission:
    """Job that is submitted ``after_s`` after the first; elastic between 1 and ``most`` devices."""

    job_id: str
    after_s: float
    model: str
    iterations: int
    gpus: int
    is_elastic: bool

    @property
    def most(self) -> int:
        """Largest number of devices."""
        return DEVICES if self.is_elastic else self.gpus


class Curves:
    """Measured step times of the models; they are forecasts and ground truth.

    Parameters
    ----------
    pollux : Path
        Folder that ``presage import pollux`` wrote.
    """

    def __init__(self, pollux: Path) -> None:
        self.measured: Measurements = read_measurements(pollux)

    def step_s(self, model: str, gpus: int, size: Size) -> float:
        """Return the seconds of a step of a job that requests ``gpus`` devices, on a size."""
        batch = self.measured.features[model].job.batch_size * gpus
        return self.measured.scaling[model, KIND].step_s(batch, *size)

    def steps_s(self, submission: Submission) -> dict[Size, float]:
        """Return the seconds of a step of a job on each size that it may have."""
        least = 1 if submission.is_elastic else submission.gpus
        return {
            (gpus, nodes): self.step_s(submission.model, submission.gpus, (gpus, nodes))
            for gpus in range(least, submission.most + 1)
            for nodes in range(fewest_nodes(gpus, DEVICES_OF_A_NODE), min(NODES, gpus) + 1)
        }

    def run_s(self, submission: Submission) -> float:
        """Return the time of all steps on the requested devices of one node."""
        return submission.iterations * self.step_s(
            submission.model, submission.gpus, (submission.gpus, 1)
        )


def cluster() -> Cluster:
    """Return the nodes."""
    memory_bytes = round(MEMORY_GIB * 2**30)
    return Cluster(
        tuple(Node(f"n{i}", DEVICES_OF_A_NODE, KIND, memory_bytes) for i in range(NODES))
    )


def submissions(curves: Curves, seed: int) -> list[Submission]:
    """Return the jobs of a trace, by arrival."""
    draw = random.Random(seed)
    kinds = [True] * ELASTIC + [False] * FIXED
    draw.shuffle(kinds)
    at_s, found = 0.0, []
    for number, is_elastic in enumerate(kinds):
        model, gpus = draw.choice(MODELS), draw.choice((1, 2))
        step_s = curves.step_s(model, gpus, (gpus, 1))
        iterations = round(draw.uniform(SHORTEST_S, LONGEST_S) / step_s)
        found.append(Submission(f"job-{number}", at_s, model, iterations, gpus, is_elastic))
        at_s += draw.expovariate(1 / EVERY_S)
    return found
