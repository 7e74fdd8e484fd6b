"""Duration of gang decisions, forecasts included, for benchmarks/gang."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.gang.plans import NODE, tree
from benchmarks.serving.processes import Processes
from benchmarks.serving.servers import MOST_START_S, SOURCE, free_port
from presage.errors import ServiceError
from presage.features.job.job_description import JobFeatures
from presage.models.release.release import load_release
from presage.schedulers.core.action import Reject, Start
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import Queue
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.forecasters.predicted import Predicted
from presage.schedulers.forecasters.predicted import Predictor as ServicePredictor
from presage.schedulers.policies.gang.gang_policy import Gang
from presage.schedulers.simulator.ground_truth.model_measurements import read_measurements
from presage.serving.client.client import PresageClient
from presage.serving.predictor.predictor import Predictor

SHIPPED = Path("data/pretrained/release")
KIND, MEMORY_BYTES = "rtx-3090", 24 * 2**30
NODES, RACKS, MEMBERS = 128, 8, 64
TENANT = (500, MEMORY_BYTES // 4)  # of each device's compute and memory, by the job on it
GANGS = 7  # models of which a gang comes
AFRESH = 3  # restarts of the scheduler
WHERE = ("in process", "by gRPC")


@dataclass(frozen=True, slots=True)
class Case:
    """Source of forecasts, and diversity of the jobs on the devices.

    Attributes
    ----------
    own : bool
        Whether each of the 1,024 jobs has features of its own; else those of their models.
    """

    where: str
    own: bool


@dataclass(frozen=True, slots=True)
class Took:
    """Milliseconds on the clock, of this process and of the service's processor."""

    wall_ms: float
    cpu_ms: float
    service_ms: float


CASES = [Case(where, own) for where in WHERE for own in (False, True)]


WHEN = ("afresh", "new", "again")


def decided(case: Case, lucid: Path) -> dict[str, Any]:
    """Return medians of decisions on a gang of 64 where each of 1,024 devices has a job.

    ``afresh``: no forecast is cached, not even of running jobs. ``new``: the gang's model is new.
    ``again``: another gang of that model.
    """
    models = _small(read_measurements(lucid).features)[:GANGS]
    took: dict[str, list[Took]] = {when: [] for when in WHEN}
    started, occupancies = 0, 0
    for _ in range(AFRESH):
        with _predictor(case) as (predictor, service_s):
            features = read_measurements(lucid).features  # without cached values
            world = _World(predictor, service_s, features, own=case.own)
            occupancies = world.occupancies
            for number, model in enumerate(models):
                took["new" if number else "afresh"].append(world.decide(model))
                took["again"].append(world.decide(model))
            started = world.started
    return {
        "occupancies": occupancies, "started": started, "gangs": 2 * len(models),
        **{
            when: {
                "decisions": len(of), "worst_ms": max(one.wall_ms for one in of),
                **{
                    field: median(getattr(one, field) for one in of)
                    for field in ("wall_ms", "cpu_ms", "service_ms")
                },
            }
            for when, of in took.items()
        },
    }  # fmt: skip


def _small(features: Mapping[str, JobFeatures]) -> list[str]:
    """Return the models that the release predicts to fit together with the jobs on the devices."""
    forecaster = Predicted(Predictor(load_release(SHIPPED)))
    jobs = [Job(model, 0.0, features=one, iterations=1) for model, one in features.items()]
    predictions = forecaster.predictions([(job, KIND) for job in jobs])
    left = MEMORY_BYTES - TENANT[1]
    return [
        job.job_id
        for job, prediction in zip(jobs, predictions, strict=True)
        if prediction is not None and prediction.memory_bytes <= left
    ]


class _World:
    """Cluster with a job and free capacity on each device.

    Attributes
    ----------
    occupancies : int
        Jobs on the devices that are unlike each other.
    started : int
        Decisions that were to start the gang.
    """

    def __init__(
        self,
        predictor: ServicePredictor,
        service_s: Callable[[], float],
        features: Mapping[str, JobFeatures],
        *,
        own: bool,
    ) -> None:
        self._service_s, self._features = service_s, features
        nodes = tuple(Node(f"n{i}", NODE, KIND, MEMORY_BYTES) for i in range(NODES))
        cluster = Cluster(nodes, tree(NODES, RACKS))
        self._forecasts = Forecasts(Predicted(predictor), cluster)
        self._policy = Gang(overcommit=2, most_slowdown=3)
        self._ledger = Ledger(cluster, Queue(lambda job, status: (job.submit_s,)))
        self._came = self.started = 0
        models = islice(cycle(features), cluster.devices)
        tenants = [
            Job(f"on {device}", 0.0, model=model, features=_own(features[model], device, own=own))
            for device, model in enumerate(models)
        ]
        self.occupancies = len({job.equivalence_class for job in tenants})
        for job in tenants:
            self._ledger.submit(job, 0.0)
        starts = [
            Start(job.job_id, (Allocation(device, *TENANT),)) for device, job in enumerate(tenants)
        ]
        self._ledger.apply(starts, 0.0)

    def decide(self, model: str) -> Took:
        """Decide on a gang that is submitted, and remove it again."""
        self._came += 1
        gang = Job(f"gang {self._came}", 1.0, MEMBERS, model=model, features=self._features[model])
        self._ledger.submit(gang, 1.0)
        state = State(self._ledger, 1.0, Progress())
        service_s, cpu_s, wall_s = self._service_s(), time.process_time(), time.perf_counter()
        actions = self._policy.decide(state, self._forecasts, Random(0))
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        service_s = self._service_s() - service_s
        self.started += any(isinstance(action, Start) for action in actions)
        self._ledger.apply([Reject(gang.job_id, "decided")], 1.0)
        return Took(1000 * wall_s, 1000 * cpu_s, 1000 * service_s)


def _own(features: JobFeatures, number: int, *, own: bool) -> JobFeatures:
    """Return the same features as those of a job of its own."""
    if not own:
        return features
    mine = replace(features.job, job_id=f"{features.job.job_id} {number}")
    return replace(features, job=mine)


@contextmanager
def _predictor(case: Case) -> Iterator[tuple[ServicePredictor, Callable[[], float]]]:
    """Yield the pretrained release, and the processor seconds that its service has used."""
    if case.where == "in process":
        yield Predictor(load_release(SHIPPED)), lambda: 0.0
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        _service(Path(folder)) as (port, processes),
        PresageClient(f"127.0.0.1:{port}") as client,
    ):
        _wait(client, processes)
        yield client, processes.cpu_s


@contextmanager
def _service(folder: Path) -> Iterator[tuple[int, Processes]]:
    port = free_port()
    command: Sequence[str] = (
        sys.executable, "-m", "presage.serving", "--release", str(SHIPPED.resolve()),
        "--port", str(port),
    )  # fmt: skip
    env = dict(os.environ, PYTHONPATH=str(SOURCE), OMP_NUM_THREADS="1")
    cores = os.sched_getaffinity(0)
    processes = Processes(command, cores=cores, env=env, cwd=folder, output=folder / "out.log")
    try:
        yield port, processes
    finally:
        processes.stop()


def _wait(client: PresageClient, processes: Processes) -> None:
    """Wait until the service responds."""
    until_s = time.perf_counter() + MOST_START_S
    while True:
        processes.check_running()
        try:
            client.release()
        except ServiceError:
            if time.perf_counter() > until_s:
                raise
            time.sleep(0.1)
        else:
            return
