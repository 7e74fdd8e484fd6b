"""Campaign over a Ray cluster of two real nodes on this host, with processors as devices."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from presage.errors import ProfilingError
from presage.features.tables import schemas as tables
from presage.pipelines.profiling.campaign.campaign import run_campaign
from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
from presage.pipelines.profiling.running.ray_runner import ray_runner
from tests.support.ray_driver import run_ray_driver

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install presage[ray]"
)
SCRIPT = Path(__file__).with_name("ray_campaign.py")


def campaign(folder: Path, what: str) -> tuple[dict[str, Any], str]:
    """Return the output of the campaign, and its log."""
    ended = run_ray_driver(SCRIPT, folder, what, timeout_s=280)
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result, ended.stderr


def test_two_nodes_share_a_campaign_and_runs_of_a_lost_node_are_repeated(tmp_path):
    result, logged = campaign(tmp_path, "lose-a-node")
    executions = tables.read(tables.EXECUTIONS, tmp_path / "executions.parquet").to_pylist()

    assert result == {"alone": 4, "together": 1, "failed": 0}
    assert len({row["job_id"] for row in executions}) == 4
    assert all(row["failure"] == "" for row in executions)
    assert "a device was lost" in logged


def test_the_error_of_a_cluster_without_devices_says_how_to_offer_them(tmp_path):
    result, _ = campaign(tmp_path / "new", "no-devices")

    assert "offers no 'presage_device'; start its nodes with" in result["error"]
    assert not (tmp_path / "new").exists()


def test_an_address_without_a_response_is_an_error_within_seconds(tmp_path):
    settings = CampaignSettings(campaign="ray", budget_s=20)
    with pytest.raises(ProfilingError, match=r"no Ray cluster at '127\.0\.0\.1:1' .*ray start"):
        run_campaign(tmp_path, settings, lambda _: None, open_runner=ray_runner("127.0.0.1:1"))


def test_the_error_of_a_missing_cluster_is_one_line_with_a_remedy(tmp_path):
    result, _ = campaign(tmp_path, "no-cluster")

    assert "no Ray cluster at 'auto'" in result["error"]
    assert "ray start --head" in result["error"]
