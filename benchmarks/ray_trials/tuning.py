"""Runs of Ray Tune on two nodes with a core each, trials on whole devices or by forecasts.

``python -m benchmarks.ray_trials.tuning OUTPUT`` is the driver; it writes a file for each run.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.ray_trials.trial import MemoryWatch, run_trial
from benchmarks.ray_trials.workload import Kind, draw_kinds, trials_in_order
from presage.features.tables import schemas as tables
from presage.ray import TrialResources, resources
from presage.serving.predictor.predictor import load_predictor

RISK = 0.1
DEVICE, NODES = "cpu-1", 2
MEMORY_BYTES = 3 * 2**29  # of a node's trials: 1.5 GiB
ORDER = ("whole", "shared", "shared", "whole")  # drift of the machine's speed cancels


@dataclass(frozen=True, slots=True)
class Run:
    """Result of the same trials under one kind of request.

    Attributes
    ----------
    finished : list of dict
        Rows of the trials that finished.
    oom_kills : int
        Trials that were killed since the memory of their node was exceeded.
    peak_bytes : list of int
        Most memory of each node's trials at once.
    """

    mode: str
    elapsed_s: float
    trials: int
    finished: list[dict[str, Any]]
    oom_kills: int
    peak_bytes: list[int]


def main() -> None:
    """Start Ray, make the runs, and write them and the decisions."""
    output = Path(sys.argv[1]).resolve()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    logging.basicConfig(level=logging.WARNING)
    predictor = load_predictor(output / "release")
    jobs = tables.read(tables.EXECUTIONS, output / "tables/executions.parquet")
    measured = set(jobs.column("job_id").to_pylist()) | _committed()
    kinds = draw_kinds(predictor, predictor.device(DEVICE), measured)
    requests = [request(kind, predictor) for kind in kinds]
    (output / "kinds.json").write_text(json.dumps(_described(kinds, requests), indent=1))
    for kind, one in zip(kinds, requests, strict=True):
        print(kind.job, round(kind.wait_s * 1e3), dict(one), one.reason, file=sys.stderr)
    if "--dry" in sys.argv:
        return
    with ray_cluster():
        for number, mode in enumerate(ORDER):
            shared = requests if mode == "shared" else None
            run = tune_trials(output / f"run-{number}", mode, kinds, shared)
            (output / f"run-{number}.json").write_text(json.dumps(asdict(run), indent=1))
            rate = 3600 * len(run.finished) / run.elapsed_s
            print(mode, f"{run.elapsed_s:.0f} s, {rate:.0f} trials/h", file=sys.stderr)


def request(kind: Kind, predictor: Any) -> TrialResources:
    """Return the resources of a kind of trial, by its forecasts."""
    return resources(
        kind.features, RISK, predictor=predictor, device=DEVICE,
        device_memory_bytes=MEMORY_BYTES, loading=kind.loading,
    )  # fmt: skip


def _committed() -> set[str]:
    names: set[str] = set()
    for folder in ("cpu-2", "cpu-2-zoo"):
        rows = tables.read(tables.EXECUTIONS, Path("data/profiles") / folder / "executions.parquet")
        names |= set(rows.column("job_id").to_pylist())
    return names


def _described(kinds: Sequence[Kind], requests: Sequence[TrialResources]) -> list[dict[str, Any]]:
    return [
        {
            "job": kind.job,
            "wait_s": kind.wait_s,
            "iterations": kind.iterations,
            "request": dict(one),
            "trials": one.trials_per_device,
            "slowdown": one.sharing.slowdown,
            "memory_bytes": one.sharing.memory_bytes,
            "reason": one.reason,
        }
        for kind, one in zip(kinds, requests, strict=True)
    ]


@contextmanager
def ray_cluster() -> Iterator[None]:
    """Start two nodes with a core each, and connect to them."""
    import ray
    from ray.cluster_utils import Cluster

    cores = sorted(os.sched_getaffinity(0))[:NODES]
    head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for core in cores:
            os.sched_setaffinity(0, {core})
            cluster.add_node(num_cpus=1, memory=MEMORY_BYTES, object_store_memory=2**27)
        os.sched_setaffinity(0, cores)
        ray.init(address=cluster.address, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def tune_trials(
    folder: Path,
    mode: str,
    kinds: Sequence[Kind],
    requests: Sequence[TrialResources] | None,
) -> Run:
    """Run all trials once; without requests each has a whole device."""
    from ray import tune

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "running").mkdir(parents=True)
    order = trials_in_order()
    configs = [
        {
            "number": number, "kind": kind, "job": kinds[kind].job, "folder": str(folder),
            "wait_s": kinds[kind].wait_s, "iterations": kinds[kind].iterations,
        }
        for number, kind in enumerate(order)
    ]  # fmt: skip
    whole = {"CPU": 1.0}
    requested = [dict(one) for one in requests] if requests else [whole] * len(kinds)
    tuner = tune.Tuner(
        tune.with_resources(run_trial, lambda config: requested[config["trial"]["kind"]]),
        param_space={"trial": tune.grid_search(configs)},
        run_config=tune.RunConfig(storage_path=str(folder / "tune"), verbose=0),
    )
    with MemoryWatch(folder / "running", MEMORY_BYTES) as watch:
        began_s = time.monotonic()
        tuner.fit()
        elapsed_s = time.monotonic() - began_s
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    peaks = [watch.peak_bytes[core] for core in sorted(watch.peak_bytes)]
    return Run(mode, elapsed_s, len(order), rows, watch.kills, peaks)


if __name__ == "__main__":
    main()
