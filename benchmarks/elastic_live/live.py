"""Live runs of benchmarks/elastic_live: a controller, two agents, and the jobs of a trace."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.elastic_live.devices import DEVICES_OF_A_NODE, KIND, MEMORY_GIB, NODES, STARTUP_S
from benchmarks.elastic_live.trace import POLICY, Curves, Submission
from presage.errors import ServiceError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.v1 import cluster_pb2 as pb

JOB = "benchmarks.elastic_live.job"
ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
PORT, HEARTBEAT_S = 50171, 0.5
LONGEST_RUN_S = 900.0


def run_live(
    jobs: Sequence[Submission],
    curves: Curves,
    tables: Path,
    folder: Path,
    *,
    port: int = PORT,
    startup_s: float = STARTUP_S,
) -> dict[str, Any]:
    """Return what became of each job, by its id.

    Parameters
    ----------
    tables : Path
        Folder of the curves.
    startup_s : float
        Time from the start of a worker's process until it joins its job, at least.
    """
    with cluster(folder, str(tables.resolve()), port) as client:
        began_s = time.monotonic()
        for one in jobs:
            time.sleep(max(0.0, began_s + one.after_s - time.monotonic()))
            client.submit([_message(one, curves, folder, startup_s)])
        until(lambda: all(_ended(client)), LONGEST_RUN_S, "the jobs did not end")
        return {one.job_id: _outcome(client, one, folder) for one in jobs}


@contextmanager
def cluster(folder: Path, predictor: str, port: int) -> Iterator[ClusterClient]:
    """Run a controller and agents; yield a client."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    address = f"127.0.0.1:{port}"
    devices = [f"{KIND}={device}" for device in range(DEVICES_OF_A_NODE)]
    processes = [
        start_process(
            folder, "controller", "--journal", str(folder / "journal.db"), "--port", str(port),
            "--policy", POLICY, "--leaders", str(folder / "leaders"), "--predictor", predictor,
        )
    ]  # fmt: skip
    try:
        with ClusterClient(address) as client:
            until(lambda: client.list() is not None, 60.0, "the controller did not start")
            processes += [start_agent(folder, f"n{i}", address, devices) for i in range(NODES)]
            until(
                lambda: sum(node.connected for node in client.list().nodes) == NODES,
                60.0,
                "the nodes did not join",
            )
            yield client
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(60)


def start_agent(
    folder: Path, node: str, address: str, devices: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start the agent of a node; devices are KIND=PROCESSOR."""
    options = [f"--device={device}" for device in devices]
    return start_process(
        folder, "agent", "--node", node, "--controller", address, "--state", str(folder / node),
        "--checkpoints", str(folder / "checkpoints"), "--memory-gib", str(MEMORY_GIB),
        "--heartbeat-s", str(HEARTBEAT_S), *options,
        *(["--allow-root-jobs"] if os.geteuid() == 0 else []),
    )  # fmt: skip


def start_process(folder: Path, what: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a controller or an agent, with its output in a file of the folder."""
    name = arguments[1] if what == "agent" else what
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "presage", "cluster", what, *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
        )


def until(holds: Any, within_s: float, problem: str) -> None:
    """Wait until a condition holds; retry while the controller is unavailable."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        try:
            if holds():
                return
        except ServiceError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"{problem} within {within_s:g} s")


def _message(one: Submission, curves: Curves, folder: Path, startup_s: float) -> pb.Job:
    steps = {f"{gpus},{nodes}": s for (gpus, nodes), s in curves.steps_s(one).items()}
    command = [
        sys.executable, "-m", JOB, "--iterations", str(one.iterations), "--steps",
        json.dumps(steps), "--startup-s", str(startup_s), "--record",
        str(_record(folder, one.job_id)),
    ]  # fmt: skip
    job = pb.Job(
        job_id=one.job_id, model=one.model, iterations=one.iterations, gpus=one.gpus,
        environment={"OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH},
    )  # fmt: skip
    if one.is_elastic:
        job.min_gpus, job.max_gpus = 1, one.most
    else:
        command += ["--gpus", str(one.gpus)]
    job.command.extend(command)
    return job


def _record(folder: Path, job_id: str) -> Path:
    return folder / f"{job_id}.jsonl"


def _ended(client: ClusterClient) -> list[bool]:
    return [row.ended_unix_s > 0 for row in client.list(ended=True).jobs]


def _outcome(client: ClusterClient, one: Submission, folder: Path) -> dict[str, Any]:
    row = client.explain(one.job_id).status
    sizes = [(change.time_unix_s, change.gpus, change.reason) for change in row.sizes]
    if not one.is_elastic:
        sizes = [(row.started_unix_s, one.gpus, ""), (row.ended_unix_s, 0, "")]
    record = _record(folder, one.job_id)
    lines = record.read_text().splitlines() if record.is_file() else []
    return {
        "phase": pb.Phase.Name(row.phase),
        "submitted_unix_s": row.submitted_unix_s,
        "started_unix_s": row.started_unix_s,
        "ended_unix_s": row.ended_unix_s,
        "attempts": row.attempt,
        "sizes": sizes,
        "generations": [json.loads(line) for line in lines],
    }
