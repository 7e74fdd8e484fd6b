"""Campaign over a Ray cluster of this host, printed as JSON: ``ray_campaign.py FOLDER WHAT``.

Runs in a separate process: Ray sends its driver a SIGTERM, at any later time, when a node that it
was connected to is gone.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from presage.errors import ProfilingError
from presage.features.device.device import usable_cores
from presage.pipelines.profiling.campaign.campaign import run_campaign
from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
from presage.pipelines.profiling.running.ray_runner import RESOURCE, ray_runner
from presage.pipelines.profiling.running.run_options import RunOptions

HASTY = RunOptions(threads=usable_cores(), quiet_wait_s=0.0, quiet_sample_s=0.01, attempts=1)
SETTINGS = CampaignSettings(
    campaign="ray", budget_s=240, jobs=4, colocations=1, window_s=0.2, families=("mlp",)
)


def main() -> None:
    """Measure; ``WHAT`` is "lose-a-node", "no-devices" or "no-cluster"."""
    folder, what = Path(sys.argv[1]), sys.argv[2]
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    logging.basicConfig(level=logging.WARNING)
    try:
        result = measure_without_cluster(folder) if what == "no-cluster" else measure(folder, what)
    except ProfilingError as error:
        result = {"error": str(error)}
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)  # whatever Ray would still say of the nodes that it lost


def measure_without_cluster(folder: Path) -> dict[str, Any]:
    """Run a campaign on a missing cluster."""
    run_campaign(folder, SETTINGS, lambda _: None, open_runner=ray_runner("auto"))
    return {}


def measure(folder: Path, what: str) -> dict[str, Any]:
    """Run a campaign on two nodes, one of which is lost, or on a cluster without devices."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        offered = [] if what == "no-devices" else [{RESOURCE: 1}] * 2
        nodes = [cluster.add_node(num_cpus=1, resources=resources) for resources in offered]
        lost: list[bool] = []

        def lose_a_node(progress: Any) -> None:
            # Two runs have been begun by then, one on each node.
            if progress.phase == "solo" and progress.solo == 1 and not lost:
                lost.append(True)
                cluster.remove_node(nodes[1], allow_graceful=False)

        end = run_campaign(
            folder, SETTINGS, lose_a_node, HASTY, open_runner=ray_runner(cluster.address)
        )
        return {"alone": end.solo, "together": end.colocated, "failed": end.failed}
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
