"""Placement of a gang by each optimiser: ``python examples/gang.py --picture plan.png``.

A gang of eight is placed on 24 devices in three racks (gang_cluster.yaml); some of them have jobs
already. The pretrained release predicts the slowdowns of co-located jobs. The plan of one optimiser
is printed, and drawn on the tree of the topology (docs/schedulers/gang_scheduling.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from presage.features.job.job_description import JobFeatures
from presage.models.release.release import load_release
from presage.pipelines.stages.stage import run_stage
from presage.schedulers.cluster_files.cluster_file import read_cluster
from presage.schedulers.core.action import Start
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import Queue
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.forecasters.predicted import Predicted
from presage.schedulers.policies.gang.candidates import candidates_of, needs_of
from presage.schedulers.policies.gang.distances import Distances
from presage.schedulers.policies.gang.gang_policy import OPTIMISERS, Gang
from presage.schedulers.policies.gang.occupancy import Tenants
from presage.schedulers.policies.gang.problem import Problem, Weights
from presage.schedulers.policies.packing.compatibility import Limits
from presage.schedulers.report.plan_picture import draw_plan
from presage.schedulers.simulator.ground_truth.model_measurements import read_measurements
from presage.serving.predictor.predictor import Predictor

HERE = Path(__file__).parent
DATA = HERE.parent / "data"
# Jobs of the committed campaigns: their graphs are known; their behaviour on a V100 is predicted.
GANG = "vgg/w64-d8/b2/sgd"
MODELS = {
    "unet": "unet/w16-d3-s64/b1/adam",
    "llama": "llama/w128-d4-t128/b8/inference",
    "vit": "vit/w256-d4-s32/b16/inference",
    "dcgan": "dcgan/w32-s64/b8/adam",
    "encoder": "transformer_encoder/w128-d4-t64/b32/adamw",
    "resnet": "resnet/w32-d14/b32/sgd",
    "vgg": "vgg/w64-d8/b64/sgd",
    "lstm": "lstm_lm/w400-d1-v5k/b16/sgd",
}
DEVICES = {  # devices of each job; resnet 1 is a gang of two
    "resnet 1": (2, 3), "encoder 1": (5,), "vgg 1": (6,), "vgg 2": (7,), "unet 1": (8,),
    "unet 2": (9,), "llama 1": (10,), "dcgan 1": (13,), "unet 3": (14,), "llama 2": (15,),
    "lstm 1": (17,), "vit 1": (18,), "lstm 2": (19,), "vit 2": (22,), "resnet 2": (23,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Placed:
    """Placement of the gang: its devices in the order of the ring, and their cost."""

    devices: NDArray[np.int64]
    interference: float
    communication: float
    cost: float


def main() -> None:
    """Plan with each optimiser, and print and draw one plan."""
    parser = argparse.ArgumentParser(description="Place a gang of eight with each optimiser.")
    parser.add_argument("--alpha", type=float, default=1.0, help="weight of interference")
    parser.add_argument("--beta", type=float, default=1.0, help="weight of communication")
    parser.add_argument(
        "--optimiser",
        choices=OPTIMISERS,
        default="tree",
        help="optimiser of the printed and drawn plan",
    )
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw the plan to an .svg or .png file"
    )
    args = parser.parse_args()
    if args.picture is not None and args.picture.suffix not in (".svg", ".png"):
        parser.error(f"--picture {args.picture}: name a file that ends with .svg or .png")

    world = World()
    console = Console(width=100)
    table = Table(title=f"a gang of {world.gang.gpus} on {world.state.cluster.devices} devices")
    for column in ("optimiser", "interference", "communication", "cost", "devices"):
        table.add_column(column, justify="left" if column in ("optimiser", "devices") else "right")
    plans = {name: world.place(name, args.alpha, args.beta) for name in OPTIMISERS}
    for name, plan in plans.items():
        costs = plan.interference, plan.communication, plan.cost
        table.add_row(name, *(f"{cost:.4f}" for cost in costs), world.names(plan.devices))
    console.print(table)
    plan = plans[args.optimiser]
    console.print(world.table(plan.devices, f"the plan of {args.optimiser}, in the ring's order"))
    if args.picture is not None:
        draw_plan(
            args.picture,
            world.state.cluster,
            tenants=[world.state.jobs_on(device) for device in range(world.state.cluster.devices)],
            slowdowns=world.slowdowns,
            ring=plan.devices.tolist(),
            title=f"A gang of {world.gang.gpus}, planned by {args.optimiser}: "
            f"{args.alpha:g} x interference {plan.interference:.4f} + "
            f"{args.beta:g} x communication {plan.communication:.4f} = {plan.cost:.4f}",
        )
        console.print(f"drawn: {args.picture}")


class World:
    """Cluster with running jobs, a waiting gang, and forecasts of both.

    Attributes
    ----------
    slowdowns : ndarray of shape (devices,)
        Largest predicted slowdown on each device with a member of the gang; infinite where no
        member can be placed.
    """

    def __init__(self) -> None:
        cluster = read_cluster(HERE / "gang_cluster.yaml")
        measured: dict[str, JobFeatures] = {}
        for campaign in ("cpu-2", "cpu-2-zoo"):
            measured.update(read_measurements(DATA / "profiles" / campaign).features)
        release = load_release(DATA / "pretrained" / "release")
        self.forecasts = Forecasts(Predicted(Predictor(release)), cluster)
        ledger = Ledger(cluster, Queue(lambda job, status: (job.submit_s,)))
        self._limits = Limits(most_slowdown=1.5, most_members=2, overcommit=1.0)
        starts = []
        for name, devices in DEVICES.items():
            model = MODELS[name.split()[0]]
            job = Job(name, 0.0, len(devices), model=model, features=measured[model])
            ledger.submit(job, 0.0)
            needs = needs_of(job, cluster, self.forecasts, self._limits, exclusive=False)
            allocations = [
                Allocation(device, *needs[cluster.kind_of(device)]) for device in devices
            ]
            starts.append(Start(name, tuple(allocations)))
        ledger.apply(starts, 0.0)
        self.gang = Job("gang", 1.0, 8, model=GANG, features=measured[GANG])
        ledger.submit(self.gang, 1.0)
        self.state = State(ledger, 1.0, Progress())
        needs = needs_of(self.gang, cluster, self.forecasts, self._limits, exclusive=False)
        self._found = candidates_of(
            self.gang, needs, cluster, Tenants(self.state), self.forecasts, self._limits
        )
        self.slowdowns = np.full(cluster.devices, np.inf)
        for device in self._found.devices[:, 0].tolist():
            self.slowdowns[device] = max(self._together(device))

    def _together(self, device: int) -> tuple[float, ...]:
        """Return the slowdowns of the jobs on a device, and last of a gang member with them."""
        jobs = tuple(self.state.job(job_id) for job_id in self.state.jobs_on(device))
        if not jobs:
            return (1.0,)
        kind = self.state.cluster.kind_of(device)
        return self.forecasts.slowdowns([(kind, (*jobs, self.gang))])[0]

    def place(self, optimiser: str, alpha: float, beta: float) -> Placed:
        """Return the placement that the policy decides."""
        policy = Gang(alpha=alpha, beta=beta, optimiser=optimiser)
        (start,) = policy.decide(self.state, self.forecasts, Random(0))  # noqa: S311
        assert isinstance(start, Start)
        candidates = self._found.devices[:, 0]
        place_of = {device: place for place, device in enumerate(candidates.tolist())}
        places = np.sort([place_of[allocation.device] for allocation in start.allocations])
        problem = Problem(
            np.broadcast_to(self._found.degradation, (len(places), len(place_of))),
            Distances(self.state.cluster.topology, candidates),
            Weights(alpha, beta),
        )
        return Placed(
            candidates[places],
            float(problem.interference(places[None])[0]),
            float(problem.communication(places[None])[0]),
            float(problem.costs(places[None])[0]),
        )

    def names(self, devices: Sequence[int] | NDArray[np.int64]) -> str:
        """Return the names of devices by node, such as "n0: 0 1"."""
        by_node: dict[str, list[str]] = {}
        for device in devices:
            node, number = self.state.cluster.name_of(int(device)).split("/")
            by_node.setdefault(node, []).append(number)
        return ", ".join(f"{node}: {' '.join(numbers)}" for node, numbers in by_node.items())

    def table(self, ring: NDArray[np.int64], title: str) -> Table:
        """Return a table of a plan, with a row for each member."""
        tree = self.state.cluster.topology
        following = np.roll(ring, -1)
        table = Table(title=title)
        for column in ("device", "co-located", "slowdown", "theirs", "link to next", "cost"):
            table.add_column(
                column, justify="left" if column in ("device", "co-located") else "right"
            )
        for device, level, cost in zip(
            ring.tolist(),
            tree.common_level(ring, following),
            tree.distance(ring, following),
            strict=True,
        ):
            *others, own = self._together(device)
            table.add_row(
                self.state.cluster.name_of(device), " ".join(self.state.jobs_on(device)) or "none",
                f"{own:.2f} x", " ".join(f"{other:.2f} x" for other in others),
                f"over {tree.levels[level]}", f"{cost:g}",
            )  # fmt: skip
        return table


if __name__ == "__main__":
    run_stage(main)
