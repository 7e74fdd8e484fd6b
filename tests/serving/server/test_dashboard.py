"""Each dashboard queries exactly the metrics of its server."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from presage.schedulers.live.controller.cluster_metrics import ClusterMetrics
from presage.serving.server.prometheus_metrics import Metrics

FOLDER = Path("examples/grafana")
PROMTOOL = shutil.which("promtool")


def cluster_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    ClusterMetrics(registry)
    return registry


REGISTRIES = {"presage.json": Metrics().registry, "cluster.json": cluster_registry()}


def read(name):
    return json.loads((FOLDER / name).read_text())


def queries(board):
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_every_dashboard_is_tested():
    assert {path.name for path in FOLDER.iterdir()} == set(REGISTRIES)
    assert len({read(name)["uid"] for name in REGISTRIES}) == len(REGISTRIES)


@pytest.mark.parametrize("name", REGISTRIES)
def test_the_metrics_of_a_dashboard_are_those_of_its_server(name):
    board = read(name)
    variables = " ".join(str(one.get("query")) for one in board["templating"]["list"])
    names = set(re.findall(r"presage_\w+", " ".join(queries(board))))
    counted = set()
    for family in REGISTRIES[name].collect():
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
        of_family = {family.name + end for end in ends[family.type]}
        assert names & of_family, f"{family.name} is nowhere on the dashboard"
        counted |= of_family

    assert names <= counted
    assert set(re.findall(r"presage_\w+", variables)) <= counted
    assert len(board["panels"]) >= 10
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("name", REGISTRIES)
@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool; apt-get install prometheus")
def test_prometheus_understands_every_query(name, tmp_path):
    found = queries(read(name))
    rules = [
        {"record": f"query:{i}", "expr": query.replace("$__rate_interval", "1m")}
        for i, query in enumerate(found)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    command = [str(PROMTOOL), "check", "rules", file]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(found)} rules found" in checked.stdout
