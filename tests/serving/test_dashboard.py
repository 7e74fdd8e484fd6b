"""The dashboard asks for nothing that the server does not count."""

import json
import re
from pathlib import Path

from presage.serving.metrics import Metrics

DASHBOARD = Path("examples/grafana/presage.json")


def test_every_metric_of_the_dashboard_is_one_of_the_servers():
    board = json.loads(DASHBOARD.read_text())
    asked = " ".join(t["expr"] for panel in board["panels"] for t in panel["targets"])
    names = set(re.findall(r"presage_\w+", asked))
    counted = set()
    for family in Metrics().registry.collect():
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
        counted |= {family.name + end for end in ends[family.type]}

    assert names <= counted
    assert len(board["panels"]) >= 10
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)
