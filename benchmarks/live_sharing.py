"""Sharing for real, on two cores of this machine, written to docs/benchmarks/live_sharing.md.

Run ``python benchmarks/live_sharing.py`` on a machine where nothing else runs; it takes about 40
minutes. A controller and two agents with a core each, and 20 training jobs of the zoo that wait for
their samples for a part of the time (examples/cluster_job.py), six of them latency-sensitive.

First every kind of job runs alone, through the same cluster: what is measured of it then is the
forecast, and the simulator's truth. Then the same submissions are run under each policy, and
simulated. Every outcome is kept in ``--output``, and not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from live_sharing_page import page

from presage.features.errors import ServiceError
from presage.pipelines.importers.imported import Imported, Origin
from presage.pipelines.profiling.tracing import trace
from presage.pipelines.profiling.zoo import parse
from presage.schedulers.cluster import Cluster, Node
from presage.schedulers.forecasters.table import Table
from presage.schedulers.job import Checkpointing, Job
from presage.schedulers.live.client import ClusterClient
from presage.schedulers.policies.named import policy_of
from presage.schedulers.simulator.measured import Measured
from presage.schedulers.simulator.metrics import metrics_of
from presage.schedulers.simulator.simulation import Simulation
from presage.schedulers.v1 import cluster_pb2 as pb

PAGE = Path("docs/benchmarks/live_sharing.md")
KIND, NODES, PORT = "cpu-1", 2, 50161
NODE_GIB = 4.0
JOB = str(Path(__file__).parent.parent / "examples/cluster_job.py")
SEED, JOBS, URGENT, EVERY_S = 1, 20, 6, 7.0
ALONE_S = 25.0  # how long a kind of job is measured
# Of the zoo, and how long a step waits for its samples.
KINDS = {
    "resnet/w16-d8/b8/sgd": 0.03,
    "mobilenet/w16-d4-s32/b8/sgd": 0.03,
    "vgg/w32-d8/b8/sgd": 0.06,
    "gpt/w64-d2-t64/b8/adamw": 0.02,
    "transformer_encoder/w128-d4-t64/b8/adamw": 0.05,
    "unet/w8-d2-s32/b8/adam": 0.03,
}
POLICIES = {
    "sharing": "sharing:check_s=5",
    "sharing, never looked at": "sharing:check_s=86400",
    "bin-packing": "bin-packing",
    "exclusive": "best-fit",
}


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that is submitted some seconds after the first."""

    job_id: str
    after_s: float
    kind: str
    iterations: int
    urgent: bool
    request_milli: int


def main() -> None:
    """Measure, run, simulate, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path, default=Path(".cache/live_sharing"))
    args = parser.parse_args()
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    alone = _kept(output / "alone.json", lambda: measured_alone(output))
    tables = output / "tables"
    write_tables(alone, tables)
    jobs = submissions(alone)
    live = {
        name: _kept(
            output / f"{name}.json", lambda policy=policy: lived(policy, jobs, tables, output)
        )
        for name, policy in POLICIES.items()
    }
    simulated = {name: simulate(policy, jobs, alone, tables) for name, policy in POLICIES.items()}
    PAGE.write_text("\n".join(page(alone, jobs, live, simulated)) + "\n")


def _kept(path: Path, make: Any) -> Any:
    if not path.is_file():
        made = make()
        path.write_text(json.dumps(made, indent=1))
    return json.loads(path.read_text())


def submissions(alone: Mapping[str, Mapping[str, float]]) -> list[Submission]:
    """The same each time: kinds in turn, lengths of 20 to 60 s, drawn by a seed.

    Users request half a core of what keeps less than 45 % of it busy, and else all of it.
    """
    draw = random.Random(SEED)
    names = sorted(alone)
    urgent = set(draw.sample(range(JOBS), URGENT))
    at_s = 0.0
    found = []
    for number in range(JOBS):
        kind = names[number % len(names)]
        length_s = draw.uniform(20.0, 60.0)
        iterations = max(10, round(length_s / alone[kind]["step_s"]))
        request = 500 if alone[kind]["busy"] < 0.45 else 1000
        found.append(
            Submission(f"job-{number:02}", at_s, kind, iterations, number in urgent, request)
        )
        at_s += draw.expovariate(1 / EVERY_S)
    return found


@contextmanager
def cluster(folder: Path, policy: str, forecast: str) -> Iterator[ClusterClient]:
    """A controller and agents of their own, and what a client asks them by."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [
        sys.executable, "-m", "presage", "cluster", "up", "--agents", str(NODES), "--port",
        str(PORT), "--state", str(folder), "--policy", policy, "--forecast", forecast,
        "--memory-gib", str(NODE_GIB),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        with ClusterClient(f"127.0.0.1:{PORT}") as client:
            _until(lambda: sum(node.connected for node in client.list().nodes) == NODES)
            yield client
    finally:
        process.terminate()
        process.wait(30)


def _until(there: Any, patience_s: float = 60.0) -> None:
    began_s = time.monotonic()
    while time.monotonic() - began_s < patience_s:
        try:
            if there():
                return
        except ServiceError:
            pass
        time.sleep(0.2)
    raise ServiceError("the cluster did not come up")


def _job(name: str, kind: str, iterations: int, **more: Any) -> pb.Job:
    command = [sys.executable, JOB, kind, "--iterations", str(iterations), "--input-wait-s"]
    return pb.Job(
        job_id=name,
        command=[*command, str(KINDS[kind])],
        model=kind,
        iterations=iterations,
        environment={"OMP_NUM_THREADS": "1"},
        checkpoint_every_s=20.0,
        **more,
    )


def measured_alone(output: Path) -> dict[str, dict[str, float]]:
    """Of each kind of job: its step, its setup, how busy and how large it is."""
    found: dict[str, dict[str, float]] = {}
    with cluster(output / "alone", "best-fit", "none") as client:
        for kind in KINDS:
            name = kind.replace("/", "-")
            client.submit([_job(name, kind, 10**6)])
            _until(lambda name=name: client.list([name]).jobs[0].done > 0)
            samples = [_sample(client, name)]
            while samples[-1][0] - samples[0][0] < ALONE_S:
                time.sleep(1.0)
                samples.append(_sample(client, name))
            client.cancel([name])
            found[kind] = _of_samples(samples)
    return found


def _sample(client: ClusterClient, name: str) -> tuple[float, float, float, float, float]:
    row = client.list([name]).jobs[0]
    return time.monotonic(), row.elapsed_s, row.done * 10**6, row.usage_milli, row.memory_bytes


def _of_samples(samples: Sequence[tuple[float, ...]]) -> dict[str, float]:
    """Between the first look at which steps were done and the last."""
    first, last = samples[len(samples) // 5], samples[-1]
    step_s = (last[0] - first[0]) / (last[2] - first[2])
    parts = [
        (b[0] - a[0]) / (b[2] - a[2])
        for a, b in zip(samples[:-3], samples[3:], strict=True)
        if b[2] > a[2]
    ]
    return {
        "step_s": step_s,
        "step_high_s": max(step_s, sorted(parts)[int(0.9 * (len(parts) - 1))]),
        "setup_s": max(0.0, first[1] - first[2] * step_s),
        "busy": statistics.mean(one[3] for one in samples[-5:]) / 1000,
        "memory_bytes": max(one[4] for one in samples),
    }


def write_tables(alone: Mapping[str, Mapping[str, float]], target: Path) -> None:
    """What was measured, as a campaign's tables."""
    made = Imported(Origin("live", "this machine", "none"))
    for kind, of in alone.items():
        config = parse(kind)
        made.job(
            kind, graph=trace(config), name=config.model, family=config.family,
            precision=config.precision, batch_size=config.batch_size, optimizer=config.optimizer,
        )  # fmt: skip
        made.execution(
            kind, KIND, campaign="live", step_time_median_s=of["step_s"],
            step_time_p90_s=of["step_high_s"], setup_s=of["setup_s"],
            compute_utilization=min(1.0, of["busy"]), memory_peak_bytes=int(of["memory_bytes"]),
        )  # fmt: skip
    made.write(target)


def lived(policy: str, jobs: Sequence[Submission], tables: Path, output: Path) -> dict[str, Any]:
    """What became of the jobs."""
    folder = output / "state" / policy.replace(":", "_")
    with cluster(folder, policy, str(tables)) as client:
        began_s = time.monotonic()
        for one in jobs:
            time.sleep(max(0.0, began_s + one.after_s - time.monotonic()))
            client.submit(
                [
                    _job(
                        one.job_id, one.kind, one.iterations, latency_sensitive=one.urgent,
                        compute_milli=one.request_milli,
                    )
                ]
            )  # fmt: skip
        while any(row.ended_unix_s == 0 for row in client.list(ended=True).jobs):
            time.sleep(0.5)
        rows = client.list(ended=True).jobs
    return {row.job.job_id: _outcome(row) for row in rows}


def _outcome(row: pb.JobStatus) -> dict[str, Any]:
    promised = row.told[0].promised_s if row.told else float("inf")
    ran_s = row.ended_unix_s - row.started_unix_s
    return {
        "phase": pb.Phase.Name(row.phase),
        "jct_s": row.ended_unix_s - row.submitted_unix_s,
        "ran_s": ran_s,
        "waited_s": row.waited_s,
        "attempts": row.attempt,
        "late": bool(row.job.latency_sensitive and ran_s > promised),
        "urgent": row.job.latency_sensitive,
    }


def simulate(
    policy: str, jobs: Sequence[Submission], alone: Mapping[str, Any], tables: Path
) -> dict[str, Any]:
    """The same submissions in the simulator, with what was measured as truth."""
    from presage.measured_models import read_measurements

    world = read_measurements(tables)
    memory_bytes = round(NODE_GIB * 2**30)
    nodes = tuple(Node(f"n{i}", 1, KIND, memory_bytes) for i in range(NODES))
    submitted = [
        Job(
            one.job_id, one.after_s, model=one.kind, iterations=one.iterations,
            latency_sensitive=one.urgent, compute_milli=one.request_milli,
            checkpointing=Checkpointing(restart_s=alone[one.kind]["setup_s"]),
        )
        for one in jobs
    ]  # fmt: skip
    duration_s = {
        one.job_id: alone[one.kind]["setup_s"] + one.iterations * alone[one.kind]["step_s"]
        for one in jobs
    }
    truth = Measured(duration_s, world, KIND, weighed=True)
    done = Simulation(Cluster(nodes), policy_of(policy), Table(world), truth, submitted)
    done.run()
    metrics = metrics_of(done)
    return {
        "jct_s": {one.job.job_id: one.end_s - one.job.submit_s for one in done.ended},
        "late_share": metrics.late_share,
        "preemptions": metrics.preemptions,
    }


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
