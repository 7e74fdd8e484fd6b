"""The dashboard queries exactly the metrics of the server."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from presage.serving.server.prometheus_metrics import Metrics

BOARD = json.loads(Path("examples/grafana/presage.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
PROMTOOL = shutil.which("promtool")


def test_the_metrics_of_the_dashboard_are_those_of_the_server():
    names = set(re.findall(r"presage_\w+", " ".join(QUERIES)))
    counted = set()
    for family in Metrics().registry.collect():
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
        of_family = {family.name + end for end in ends[family.type]}
        assert names & of_family, f"{family.name} is nowhere on the dashboard"
        counted |= of_family

    assert names <= counted
    assert len(BOARD["panels"]) >= 10
    places = [tuple(panel["gridPos"].values()) for panel in BOARD["panels"]]
    assert len(set(places)) == len(places)


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool; apt-get install prometheus")
def test_prometheus_understands_every_query(tmp_path):
    rules = [
        {"record": f"query:{i}", "expr": query.replace("$__rate_interval", "1m")}
        for i, query in enumerate(QUERIES)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    command = [str(PROMTOOL), "check", "rules", file]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(QUERIES)} rules found" in checked.stdout
