"""Stages here and on a Ray cluster of two nodes, whose outputs are printed as digests.

``ray_stages.py FOLDER`` runs in a process of its own, as Ray's other drivers in the tests do.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pandas as pd

from presage.features.quantities.quantity_registry import STEP_TIME, solo_quantities
from presage.models.training import baselines
from presage.models.training.fit import FitConfig
from presage.pipelines.evaluation import fit_members
from presage.pipelines.evaluation.solo_baselines import solo_baselines
from presage.pipelines.stages import featurize, train, train_interference
from presage.pipelines.stages.fit_settings import FineTuning, Settings
from presage.system.processes import spread as spreading
from presage.system.processes.spread import ADDRESS_VARIABLE, spread

CAMPAIGN = Path(__file__).parents[3] / "data/profiles/cpu-2"
TINY = FitConfig(
    hidden=8, steps=10, learning_rate=0.01, weight_decay=0.1, ensemble=1, seed=0, jitter=0.3
)
FINE = FineTuning(steps=5, learning_rate=0.01, pull=300.0, batch=32)
SETTINGS = Settings(TINY, TINY, 10**6, FINE)
SETTINGS_TOGETHER = replace(SETTINGS, small_tables=replace(TINY, batch=32))


def main() -> None:
    """Run the stages twice, and print the digests of both."""
    from ray.cluster_utils import Cluster

    folder = Path(sys.argv[1])
    vars(fit_members).update(MANY_ROWS=1, PART=6)  # parts of small tables, too
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        here = run_stages(folder / "here")
        os.environ[ADDRESS_VARIABLE] = cluster.address
        spreading._cluster.cache_clear()
        there = run_stages(folder / "there")
        nodes = len(set(spread(node_of_task, range(20))))
        result = {"here": here, "there": there, "nodes": nodes}
    finally:
        spreading._CONNECTION.close()
        cluster.shutdown()
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)


def node_of_task(_number: int) -> str:
    """Return the node that a task runs on, after enough time for another task to start."""
    import time

    import ray

    time.sleep(0.2)
    node: str = ray.get_runtime_context().get_node_id()
    return node


def run_stages(folder: Path) -> Mapping[str, str]:
    """Return the digests of all files that the stages write, and of the baselines' figures."""
    features = folder / "features"
    featurize.featurize([CAMPAIGN], features)
    solo = pd.read_parquet(features / "solo.parquet")
    forecasts = {}
    for name, quantity in solo_quantities().items():
        if quantity.is_optional:  # no processor reports it
            continue
        trained = train.train(solo, quantity, SETTINGS, {})
        trained.write(folder / name)
        forecasts[name] = trained.forecasts
    interference = pd.read_parquet(features / "interference.parquet")
    together = train_interference.train(solo, interference, forecasts, SETTINGS_TOGETHER, {})
    together.write(folder / "interference")
    del baselines.BASELINES["boosted_trees"]  # type: ignore[attr-defined]
    scores = solo_baselines(solo, STEP_TIME.name)
    baselines.BASELINES["boosted_trees"] = baselines.make_boosted_trees  # type: ignore[index]
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    found["baselines"] = json.dumps(scores, sort_keys=True).encode()
    return {name: sha256(content).hexdigest() for name, content in found.items()}


if __name__ == "__main__":
    main()
