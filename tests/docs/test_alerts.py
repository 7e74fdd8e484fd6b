"""The example alerts: of metrics that exist, each with an example that raises it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from presage.schedulers.live.controller.cluster_metrics import ClusterMetrics
from presage.serving.server.prometheus_metrics import Metrics

FOLDER = Path("examples/prometheus")
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
PROMTOOL = shutil.which("promtool")
ARBITER = Path("collectives/arbiter/server/arbiter_metrics.py")


def test_alerts_are_of_metrics_that_exist():
    cluster = CollectorRegistry()
    ClusterMetrics(cluster)
    families = [*Metrics().registry.collect(), *cluster.collect()]
    known = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    known |= set(re.findall(r"presage_inc_\w+", ARBITER.read_text()))

    used = set(re.findall(r"presage_\w+", " ".join(rule["expr"] for rule in RULES)))

    assert used <= known


def test_each_alert_has_a_severity_a_summary_and_an_example():
    examples = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
    raised = {
        test["alertname"]
        for example in examples
        for test in example["alert_rule_test"]
        if test["exp_alerts"]
    }

    assert raised == {rule["alert"] for rule in RULES}
    for rule in RULES:
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"]["summary"]


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool; apt-get install prometheus")
def test_the_examples_raise_their_alerts():
    command = [str(PROMTOOL), "test", "rules", str(FOLDER / "alerts_test.yaml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
