"""Live sharing on two cores of this machine, written to docs/benchmarks/live_sharing.md.

Run ``python -m benchmarks.live_sharing`` on an otherwise idle machine; it takes about 80 minutes. A
controller and two agents with a core each run 20 training jobs of the zoo that wait for their
samples for a part of the time (examples/cluster_job.py); six jobs are latency-sensitive.

First every kind of job runs solo on a core, four times, and in between every two kinds are
co-located, through the same cluster. These measurements are the forecasts and the simulator's
ground truth. A short job of each kind runs to its end: its time minus its steps is the setup. Then
the same submissions are run under each policy and simulated. Outcomes are stored in ``--output``
and not computed again; to repeat a run, repeat all, since measurements between two runs serve both.

The speed of a shared machine varies. Therefore all kinds run solo again after each policy, and the
simulator scales run times by the speed before and after. Mutual slowdowns are scaled to the mean
speed likewise. The upper bound of a run time follows from the slowest of the four solo runs.

Mutual slowdowns at equal weights do not apply to latency-sensitive jobs, whose weight counts
tenfold. Therefore pairs of a latency-sensitive and a best-effort job are measured at the end, too.
The ratio of both slowdowns is the simulator's ground truth for all pairs.
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
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.live_sharing.page import page
from benchmarks.markdown import write_page
from presage.errors import ServiceError
from presage.pipelines.importers.imported import Imported, Origin
from presage.pipelines.profiling.graph_tracing import trace
from presage.pipelines.profiling.running.work import colocation_id
from presage.pipelines.profiling.zoo import parse
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.forecasters.forecast_table import Table
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.policies.sharing.sharing_settings import URGENT_WEIGHT
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.results.schedule_metrics import compute_metrics
from presage.schedulers.simulator.simulation import Simulation
from presage.schedulers.v1 import cluster_pb2 as pb

PAGE = Path("docs/benchmarks/live_sharing.md")
KIND, NODES, PORT = "cpu-1", 2, 50161
NODE_GIB = 4.0
JOB = str(Path(__file__).parents[2] / "examples/cluster_job.py")
SEED, JOBS, URGENT, EVERY_S = 1, 20, 6, 17.0
SHORTEST_S, LONGEST_S = 25.0, 75.0
ROUNDS, SOLO_S, TOGETHER_S = 3, 20.0, 25.0  # how often and how long kinds of jobs are measured
SHORT = 60  # iterations of those that run to their end


class Kind(NamedTuple):
    """Kind of job: waiting time of a step, and the user's request."""

    input_wait_s: float
    request_milli: int


KINDS = {
    "resnet/w16-d8/b8/sgd": Kind(0.03, 500),
    "mobilenet/w16-d4-s32/b8/sgd": Kind(0.03, 1000),
    "vgg/w32-d8/b8/sgd": Kind(0.06, 500),
    "gpt/w64-d2-t64/b8/adamw": Kind(0.02, 500),
    "transformer_encoder/w128-d4-t64/b8/adamw": Kind(0.05, 1000),
    "unet/w8-d2-s32/b8/adam": Kind(0.03, 500),
}
POLICIES = {
    "sharing": "sharing:check_s=2",
    "sharing, no SLO checks": "sharing:check_s=86400",
    "bin-packing": "bin-packing",
    "exclusive": "best-fit",
}
HELD = ("sharing", "sharing, no SLO checks")  # run with quotas, too


@dataclass(frozen=True, slots=True)
class Submission:
    """Job that is submitted some seconds after the first."""

    job_id: str
    after_s: float
    kind: str
    iterations: int
    urgent: bool


def main() -> None:
    """Measure, run, simulate, write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.live_sharing",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--output", type=Path, default=Path(".cache/live_sharing"))
    args = parser.parse_args()
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    rounds, together = [_cached(output / "alone-0.json", lambda: measure_solo(output))], []
    for i in range(ROUNDS):
        pairs = list(combinations_with_replacement(sorted(KINDS), 2))[i::ROUNDS]
        together.append(
            _cached(
                output / f"together-{i}.json", lambda pairs=pairs: measured_together(output, pairs)
            )
        )
        rounds.append(_cached(output / f"alone-{i + 1}.json", lambda: measure_solo(output)))
    solo = of_rounds(rounds)
    at_mean_speed = [
        (kinds, [step_s / slower for step_s in steps_s])
        for i, part in enumerate(together)
        for slower in [_slower(solo, rounds[i : i + 2])]
        for kinds, steps_s in part
    ]
    tables = output / "tables"
    write_tables(solo, at_mean_speed, tables)
    jobs = submissions(solo)
    live, slower, held = {}, {}, {}
    for name, policy in POLICIES.items():
        live[name] = _cached(
            output / f"{name}.json", lambda policy=policy: lived(policy, jobs, tables, output)
        )
        rounds.append(_cached(output / f"alone after {name}.json", lambda: measure_solo(output)))
        slower[name] = _slower(solo, rounds[-2:])
    for name in HELD:
        held[name] = _cached(
            output / f"{name}, held.json",
            lambda name=name: lived(POLICIES[name], jobs, tables, output, "--hard-shares"),
        )
    urgent = _urgent(solo, at_mean_speed, output)
    simulated, divided = (
        {
            name: simulate(policy, jobs, solo, tables, slower[name], undivided)
            for name, policy in POLICIES.items()
        }
        for undivided in (undivided_part(*urgent), 0.0)
    )
    write_page(PAGE, page(solo, at_mean_speed, urgent, jobs, live, simulated, divided, held))


def _urgent(
    solo: Mapping[str, Mapping[str, float]],
    together: Sequence[tuple[Sequence[str], Sequence[float]]],
    output: Path,
) -> tuple[float, float]:
    """Return slowdowns of latency-sensitive jobs co-located with best effort, and at equal weights.

    Both are means over all pairs that `sharing` co-locates, as fractions of solo step times.
    """
    pairs = [
        (one, other)
        for one in sorted(solo)
        for other in sorted(solo)
        if solo[one]["busy"] + solo[other]["busy"] <= 1.0
    ]
    before = _cached(output / "alone before urgent.json", lambda: measure_solo(output))
    rows = _cached(output / "urgent.json", lambda: measured_together(output, pairs, urgent=True))
    after = _cached(output / "alone after urgent.json", lambda: measure_solo(output))
    slower = _slower(solo, [before, after])
    equal: dict[tuple[str, str], list[float]] = {}
    for kinds, steps_s in together:
        for (one, other), step_s in zip((kinds, kinds[::-1]), steps_s, strict=True):
            equal.setdefault((one, other), []).append(step_s / solo[one]["step_s"] - 1)
    tenfold = [steps_s[0] / slower / solo[one]["step_s"] - 1 for (one, _), steps_s in rows]
    return statistics.mean(tenfold), statistics.mean(
        statistics.mean(equal[one, other]) for (one, other), _ in rows
    )


def undivided_part(tenfold: float, equal: float) -> float:
    """Return the part of a mutual slowdown that weights of ten to one do not change."""
    divided = 2 / (URGENT_WEIGHT + 1)
    return min(1.0, max(0.0, (tenfold / equal - divided) / (1.0 - divided)))


def _cached(path: Path, make: Any) -> Any:
    if not path.is_file():
        made = make()
        path.write_text(json.dumps(made, indent=1))
    return json.loads(path.read_text())


def of_rounds(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Return each kind of job: means, but its longest steps and its largest memory."""
    found = {}
    for kind in sorted(KINDS):
        of = [one[kind] for one in rounds]
        means = {
            name: statistics.mean(one[name] for one in of)
            for name in ("step_s", "setup_s", "start_s", "busy")
        }
        most = {name: max(one[name] for one in of) for name in ("step_high_s", "memory_bytes")}
        found[kind] = means | most
    return found


def _slower(
    solo: Mapping[str, Mapping[str, float]],
    rounds: Sequence[Mapping[str, Mapping[str, float]]],
) -> float:
    """Return the factor by which steps took longer in some rounds, averaged over kinds."""
    return statistics.mean(
        one[kind]["step_s"] / solo[kind]["step_s"] for one in rounds for kind in solo
    )


def submissions(solo: Mapping[str, Mapping[str, float]]) -> list[Submission]:
    """Return the same jobs each time: kinds in turn, lengths drawn by a seed."""
    draw = random.Random(SEED)
    names = sorted(solo)
    urgent = set(draw.sample(range(JOBS), URGENT))
    at_s = 0.0
    found: list[Any] = []
    for number in range(JOBS):
        kind = names[number % len(names)]
        length_s = draw.uniform(SHORTEST_S, LONGEST_S)
        iterations = max(10, round(length_s / solo[kind]["step_s"]))
        found.append(Submission(f"job-{number:02}", at_s, kind, iterations, number in urgent))
        at_s += draw.expovariate(1 / EVERY_S)
    return found


class Sample(NamedTuple):
    """Status of a running job at a time."""

    at_s: float
    steps: float
    usage_milli: float
    memory_bytes: int


@contextmanager
def cluster(folder: Path, policy: str, forecast: str, *more: str) -> Iterator[ClusterClient]:
    """Run a controller and agents; yield a client."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [
        sys.executable, "-m", "presage", "cluster", "up", "--agents", str(NODES), "--port",
        str(PORT), "--state", str(folder), "--policy", policy, "--predictor", forecast,
        "--memory-gib", str(NODE_GIB), *more,
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
        command=[*command, str(KINDS[kind].input_wait_s)],
        model=kind,
        iterations=iterations,
        environment={"OMP_NUM_THREADS": "1"},
        checkpoint_interval_s=20.0,
        **more,
    )


def measure_solo(output: Path) -> dict[str, dict[str, float]]:
    """Return step, setup, start, utilization and memory of each kind of job.

    Two kinds are measured at a time, each on a core of its own: later the other is busy, too.
    """
    kinds, found = sorted(KINDS), dict[str, Any]()
    with cluster(output / "solo", "best-fit", "none") as client:
        for pair in zip(kinds[::2], kinds[1::2], strict=True):
            found |= zip(pair, map(_of_samples, _watched(client, pair, 1000, SOLO_S)), strict=True)
            for kind, row in zip(pair, _run_short_jobs(client, pair), strict=True):
                took_s = row.ended_unix_s - row.started_unix_s
                found[kind]["setup_s"] = max(0.0, took_s - SHORT * found[kind]["step_s"])
                found[kind]["start_s"] = row.started_unix_s - row.submitted_unix_s
    return found


def _run_short_jobs(client: ClusterClient, kinds: Sequence[str]) -> list[pb.JobStatus]:
    """Run short jobs of these kinds at once, each on a core, from start to end."""
    names = [f"short-{kind.replace('/', '-')}" for kind in kinds]
    client.submit(
        [
            _job(name, kind, SHORT, compute_milli=1000)
            for name, kind in zip(names, kinds, strict=True)
        ]
    )
    _until(lambda: all(row.ended_unix_s for row in client.list(names, ended=True).jobs))
    rows = {row.job.job_id: row for row in client.list(names, ended=True).jobs}
    return [rows[name] for name in names]


def measured_together(
    output: Path, pairs: Sequence[tuple[str, str]], *, urgent: bool = False
) -> list[tuple[tuple[str, str], tuple[float, float]]]:
    """Return the step times of two kinds on one core with equal shares, in seconds.

    Two such pairs are measured at a time. The first of each may be latency-sensitive.
    """
    found: list[Any] = []
    with cluster(output / "together", "bin-packing", "none") as client:
        for i in range(0, len(pairs), NODES):
            kinds = [kind for pair in pairs[i : i + NODES] for kind in pair]
            watched = _watched(client, kinds, 500, TOGETHER_S, urgent=urgent)
            steps = [_of_samples(one)["step_s"] for one in watched]
            found += zip(
                pairs[i : i + NODES], zip(steps[::2], steps[1::2], strict=True), strict=True
            )
    return found


def _watched(
    client: ClusterClient, kinds: Sequence[str], milli: int, for_s: float, *, urgent: bool = False
) -> list[list[Sample]]:
    """Yield samples of a job of each kind, once all of them have made a step.

    Every other one may be latency-sensitive, from the first on.
    """
    before = len(client.list(ended=True).jobs)
    names = [f"{before + i}-{kind.replace('/', '-')}" for i, kind in enumerate(kinds)]
    for i, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        first = urgent and i % 2 == 0
        client.submit([_job(name, kind, 10**6, compute_milli=milli, latency_sensitive=first)])
        # Decided on together, latency-sensitive ones would go first, and come to be on one core.
        _until(lambda name=name: all(row.node for row in client.list([name]).jobs))
    _until(lambda: all(row.done > 0 for row in client.list(names).jobs))
    nodes = [row.node for row in client.list(names).jobs]
    if 1000 // milli > 1 and nodes[::2] != nodes[1::2]:
        raise ServiceError(f"jobs that were to be on one core are on {nodes}")
    samples = [[one] for one in _sample(client, names)]
    while samples[0][-1].at_s - samples[0][0].at_s < for_s:
        time.sleep(1.0)
        for of, sample in zip(samples, _sample(client, names), strict=True):
            of.append(sample)
    client.cancel(names)
    _until(lambda: not client.list().jobs)
    return samples


def _sample(client: ClusterClient, names: Sequence[str]) -> list[Sample]:
    rows = {row.job.job_id: row for row in client.list(names).jobs}
    now_s = time.monotonic()
    return [
        Sample(now_s, row.done * 10**6, row.usage_milli, row.memory_bytes)
        for row in map(rows.__getitem__, names)
    ]


def _of_samples(samples: Sequence[Sample]) -> dict[str, float]:
    """Return figures between the first and the last sample with steps."""
    first, last = samples[len(samples) // 5], samples[-1]
    step_s = (last.at_s - first.at_s) / (last.steps - first.steps)
    parts = [
        (b.at_s - a.at_s) / (b.steps - a.steps)
        for a, b in zip(samples[:-3], samples[3:], strict=True)
        if b.steps > a.steps
    ]
    return {
        "step_s": step_s,
        "step_high_s": max(step_s, sorted(parts)[int(0.9 * (len(parts) - 1))]),
        "busy": statistics.mean(one.usage_milli for one in samples[-5:]) / 1000,
        "memory_bytes": max(one.memory_bytes for one in samples),
    }


def write_tables(
    solo: Mapping[str, Mapping[str, float]],
    together: Sequence[tuple[Sequence[str], Sequence[float]]],
    target: Path,
) -> None:
    """Write the measurements as a campaign's tables."""
    made = Imported(Origin("live", "this machine", "none"))
    for kind, of in solo.items():
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
    for kinds, steps_s in together:
        members = [
            {
                "job_id": kind,
                "step_time_median_s": step_s,
                "solo_step_time_s": solo[kind]["step_s"],
            }
            for kind, step_s in zip(kinds, steps_s, strict=True)
        ]
        made.colocation(colocation_id(list(kinds), KIND), members, KIND, campaign="live")
    made.write(target)


def lived(
    policy: str, jobs: Sequence[Submission], tables: Path, output: Path, *more: str
) -> dict[str, Any]:
    """Return the outcome of each job."""
    folder = output / "state" / policy.replace(":", "_")
    with cluster(folder, policy, str(tables), *more) as client:
        began_s = time.monotonic()
        for one in jobs:
            time.sleep(max(0.0, began_s + one.after_s - time.monotonic()))
            client.submit(
                [
                    _job(
                        one.job_id, one.kind, one.iterations, latency_sensitive=one.urgent,
                        compute_milli=KINDS[one.kind].request_milli,
                    )
                ]
            )  # fmt: skip
        while any(row.ended_unix_s == 0 for row in client.list(ended=True).jobs):
            time.sleep(0.5)
        rows = client.list(ended=True).jobs
    return {row.job.job_id: _outcome(row) for row in rows}


def _outcome(row: pb.JobStatus) -> dict[str, Any]:
    promised = row.predictions[0].slo_s if row.predictions else float("inf")
    ran_s = row.ended_unix_s - row.started_unix_s
    return {
        "phase": pb.Phase.Name(row.phase),
        "jct_s": row.ended_unix_s - row.submitted_unix_s,
        "ran_s": ran_s,
        "waited_s": row.waited_s,
        "attempts": row.attempt,
        "of_promised": ran_s / promised,
        "late": bool(row.job.latency_sensitive and ran_s > promised),
        "urgent": row.job.latency_sensitive,
    }


def simulate(
    policy: str,
    jobs: Sequence[Submission],
    solo: Mapping[str, Any],
    tables: Path,
    slower: float,
    undivided: float,
) -> dict[str, Any]:
    """Simulate the same submissions with the measurements as ground truth.

    ``slower`` is how many times as long all of it takes as when it was measured, ``undivided`` what
    weights leave.
    """
    from presage.schedulers.simulator.ground_truth.model_measurements import read_measurements

    world = read_measurements(tables)
    memory_bytes = round(NODE_GIB * 2**30)
    nodes = tuple(Node(f"n{i}", 1, KIND, memory_bytes) for i in range(NODES))
    submitted = [
        Job(
            one.job_id, one.after_s, model=one.kind, iterations=one.iterations,
            latency_sensitive=one.urgent, compute_milli=KINDS[one.kind].request_milli,
            checkpointing=Checkpointing(restart_s=slower * solo[one.kind]["setup_s"]),
        )
        for one in jobs
    ]  # fmt: skip
    duration_s = {
        one.job_id: solo[one.kind]["start_s"]
        + slower * (solo[one.kind]["setup_s"] + one.iterations * solo[one.kind]["step_s"])
        for one in jobs
    }
    ground_truth = MeasuredTruth(
        duration_s, world, KIND, shares="weights", undivided_share=undivided
    )
    done = Simulation(Cluster(nodes), policy_of(policy), Table(world), ground_truth, submitted)
    done.run()
    metrics = compute_metrics(done)
    return {
        "slower": slower,
        "jct_s": {one.job.job_id: one.end_s - one.job.submit_s for one in done.results},
        "of_promised": {
            one.job.job_id: (one.end_s - (one.first_start_s or 0.0)) / one.slo_s
            for one in done.results
        },
        "slo_violation_rate": metrics.slo_violation_rate,
        "preemptions": metrics.preemptions,
    }


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
