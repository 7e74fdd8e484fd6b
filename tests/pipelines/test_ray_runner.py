"""A campaign over a Ray cluster: two real nodes on this host, whose devices are processors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from presage.features import tables
from presage.features.device import usable_cores
from presage.features.errors import ProfilingError
from presage.pipelines.profiling.campaign import run_campaign
from presage.pipelines.profiling.campaign_settings import CampaignSettings
from presage.pipelines.profiling.ray_runner import RESOURCE, ray_runner
from presage.pipelines.profiling.run_options import RunOptions

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install presage[ray]")

HASTY = RunOptions(threads=usable_cores(), quiet_wait_s=0.0, quiet_sample_s=0.01, attempts=1)
TWO = {RESOURCE: 1}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def settings(**changes: Any) -> CampaignSettings:
    wanted: dict[str, Any] = {
        "campaign": "ray", "budget_s": 240, "jobs": 4, "colocations": 1, "window_s": 0.2,
        "families": ("mlp",),
    }  # fmt: skip
    return CampaignSettings(**(wanted | changes))


@pytest.mark.timeout(400)
def test_two_nodes_share_a_campaign_and_a_lost_ones_runs_are_made_again(cluster, tmp_path, caplog):
    _, second = (cluster.add_node(num_cpus=1, resources=TWO) for _ in range(2))
    lost: list[bool] = []

    def lose_a_node(progress: Any) -> None:
        # Two runs have been begun by then, one on each node.
        if progress.phase == "alone" and progress.alone == 1 and not lost:
            lost.append(True)
            cluster.remove_node(second, allow_graceful=False)

    with caplog.at_level(logging.WARNING):
        end = run_campaign(
            tmp_path, settings(), lose_a_node, HASTY, open_runner=ray_runner(cluster.address)
        )
    executions = tables.read(tables.EXECUTIONS, tmp_path / "executions.parquet").to_pylist()

    assert (end.alone, end.together, end.failed) == (4, 1, 0)
    assert len({row["job_id"] for row in executions}) == 4
    assert all(row["failure"] == "" for row in executions)
    assert "a device was lost" in caplog.text


def test_a_cluster_without_devices_says_how_to_offer_them(cluster, tmp_path):
    with pytest.raises(ProfilingError, match=f"offers no '{RESOURCE}'; start its nodes with"):
        run_campaign(
            tmp_path / "new", settings(), lambda _: None, open_runner=ray_runner(cluster.address)
        )


def test_no_cluster_there_is_one_line_with_a_remedy(tmp_path):
    with pytest.raises(ProfilingError, match=r"no Ray cluster at 'auto' .*ray start --head"):
        run_campaign(tmp_path, settings(), lambda _: None, open_runner=ray_runner("auto"))
