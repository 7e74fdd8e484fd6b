"""The dashboard asks for all that the server counts, and for nothing else."""

import json
import re
from pathlib import Path

from presage.serving.metrics import Metrics

DASHBOARD = Path("examples/grafana/presage.json")


def test_the_metrics_of_the_dashboard_are_those_of_the_server():
    board = json.loads(DASHBOARD.read_text())
    asked = " ".join(t["expr"] for panel in board["panels"] for t in panel["targets"])
    names = set(re.findall(r"presage_\w+", asked))
    counted = set()
    for family in Metrics().registry.collect():
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
        of_family = {family.name + end for end in ends[family.type]}
        assert names & of_family, f"{family.name} is nowhere on the dashboard"
        counted |= of_family

    assert names <= counted
    assert len(board["panels"]) >= 10
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)
