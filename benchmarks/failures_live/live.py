"""Live runs of benchmarks/failures_live: a controller, agents that fail, and the jobs of a plan."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.elastic_live.live import PYTHONPATH, start_process, until
from benchmarks.failures_live.failing_node import FailingNode
from benchmarks.failures_live.policies import exported_rates
from benchmarks.failures_live.trace import (
    HISTORY_DAYS,
    KIND,
    MEMORY_GIB,
    MODEL,
    MODEL_DAY_S,
    STEP_S,
    Plan,
    Submission,
    node_name,
)
from presage.errors import ServiceError
from presage.features.hazard.outage import Outage
from presage.schedulers.faults.detection import Detection
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.controller.controller_core import END_S
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.live.controller.journal.records import (
    NodeJoined,
    NodeLost,
    Pruned,
    Record,
    record_to_json,
)
from presage.schedulers.v1 import cluster_pb2 as pb

JOB = "benchmarks.failures_live.job"
LEASE_S, GRACE_S = 4.0, 1.0


HISTORY_S = HISTORY_DAYS * MODEL_DAY_S
LONGEST_RUN_S = 900.0
PROCESSORS = 2


class _Cluster(NamedTuple):
    client: ClusterClient
    nodes: list[FailingNode]
    folder: Path


def detection_of(lease_s: float = LEASE_S) -> Detection:
    """Return when a controller learns of a failure, with a lease of ``lease_s``."""
    return Detection(min(15.0, lease_s), lease_s + GRACE_S + END_S)


def run_live(
    plan: Plan, policy: str, tables: Path, folder: Path, *, port: int, lease_s: float = LEASE_S
) -> dict[str, Any]:
    """Run the jobs of a plan to their end while its outages take place; return what happened.

    Returns
    -------
    dict
        ``began_unix_s``; ``failed`` and ``started``, the times of each node; ``entries``, the
        journal since then as [unix_s, record]; ``lines`` of the jobs; and the estimated failure
        rates of nodes at the end, from all outages (``rates_per_s``) and from those of the run
        (``rates_of_run_per_s``).
    """
    names = [node_name(number) for number in range(len(plan.rates))]
    with _running_cluster(plan, policy, tables, folder, port, lease_s) as cluster:
        began_unix_s = time.time()
        _play(plan, cluster)
        found = cluster.client.outages()
        rates = [exported_rates(found, names, after_s=one) for one in (0.0, HISTORY_S)]
    with Journal.open(str(folder / "journal.db")) as journal:
        entries = [(entry.time_unix_s, entry.record) for entry in journal.read()]
    lines = (folder / "jobs.jsonl").read_text().splitlines()
    return {
        "began_unix_s": began_unix_s,
        "failed": {node.name: node.failed_unix_s for node in cluster.nodes},
        "started": {node.name: node.started_unix_s for node in cluster.nodes},
        "entries": [entry for entry in entries if entry[0] >= began_unix_s],
        "lines": [json.loads(line) for line in lines],
        "rates_per_s": rates[0],
        "rates_of_run_per_s": rates[1],
    }


@contextmanager
def _running_cluster(
    plan: Plan, policy: str, tables: Path, folder: Path, port: int, lease_s: float
) -> Iterator[_Cluster]:
    """Run a controller and agents that have joined in the order of their numbers."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    address, nodes = f"127.0.0.1:{port}", list[FailingNode]()
    _write_history(folder / "journal.db", plan)
    controller = start_process(
        folder, "controller", "--journal", str(folder / "journal.db"), "--port", str(port),
        "--policy", policy, "--predictor", str(tables), "--lease-s", str(lease_s),
        "--leaders", str(folder / "leaders"),
    )  # fmt: skip
    try:
        with ClusterClient(address) as client:
            until(lambda: client.list() is not None, 60.0, "the controller did not start")
            for number in range(len(plan.rates)):
                device = f"{KIND}={number % PROCESSORS}"
                nodes.append(FailingNode(folder, node_name(number), address, device))
                nodes[-1].start()
                until(partial(_has_nodes, client, number + 1), 60.0, "a node did not join")
            yield _Cluster(client, nodes, folder)
    finally:
        for node in nodes:
            node.stop()
            node.kill_jobs()
        controller.send_signal(signal.SIGTERM)
        controller.wait(60)


def _has_nodes(client: ClusterClient, count: int) -> bool:
    return sum(node.connected for node in client.list().nodes) == count


def _write_history(journal_file: Path, plan: Plan) -> None:
    """Write the outages before the start to a new journal, whose clock then continues from there.

    The nodes are removed at its end, and join again with their agents.
    """
    names = [node_name(number) for number in range(len(plan.rates))]
    devices: list[list[Any]] = [[KIND, round(MEMORY_GIB * 2**30)]]
    records: list[Record] = [NodeJoined(name, "", devices, 0.0) for name in names]
    events = [
        (HISTORY_S + at_s, is_repair, names[one.node])
        for one in plan.history
        for at_s, is_repair in ((one.from_s, False), (one.until_s, True))
    ]
    for at_s, is_repair, name in sorted(events):
        records.append(NodeJoined(name, "", devices, at_s) if is_repair else NodeLost(name, at_s))
    records.append(Pruned([], names, HISTORY_S))
    with Journal.open(str(journal_file)) as journal:
        journal.append([record_to_json(record) for record in records])


def _play(plan: Plan, cluster: _Cluster) -> None:
    """Submit the jobs, and let nodes fail and start, until all jobs have ended."""
    began_s = time.monotonic()
    actions = _failures(plan.outages, cluster.nodes)
    actions += [(job.after_s, partial(_submit, cluster, job)) for job in plan.jobs]
    end_s = plan.jobs[-1].after_s
    for at_s, act in sorted(actions, key=lambda action: action[0]):
        while (left_s := began_s + at_s - time.monotonic()) > 0:
            if time.monotonic() > began_s + end_s and _have_ended(cluster.client, len(plan.jobs)):
                return
            time.sleep(min(left_s, 0.5))
        act()
    until(
        lambda: _have_ended(cluster.client, len(plan.jobs)), LONGEST_RUN_S, "the jobs did not end"
    )


def _failures(
    outages: Sequence[Outage], nodes: Sequence[FailingNode]
) -> list[tuple[float, Callable[[], None]]]:
    found: list[tuple[float, Callable[[], None]]] = []
    for one in outages:
        found += [(one.from_s, nodes[one.node].fail), (one.until_s, nodes[one.node].start)]
    return found


def _submit(cluster: _Cluster, job: Submission) -> None:
    command = [
        sys.executable, "-m", JOB, "--iterations", str(job.iterations), "--step-s", str(STEP_S),
        "--record", str(cluster.folder / "jobs.jsonl"),
    ]  # fmt: skip
    message = pb.Job(
        job_id=job.job_id, command=command, model=MODEL, iterations=job.iterations, gpus=1,
        environment={"PYTHONPATH": PYTHONPATH}, grace_s=GRACE_S,
    )  # fmt: skip
    until(lambda: cluster.client.submit([message]) is not None, 30.0, "a job was not accepted")


def _have_ended(client: ClusterClient, count: int) -> bool:
    try:
        rows = client.list(ended=True).jobs
    except ServiceError:
        return False
    return len(rows) == count and all(row.ended_unix_s > 0 for row in rows)
