"""Predicted starts of gangs, from the state of an API server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from presage.errors import ConfigError
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.kubernetes.gate.gate_snapshot import copy_gate
from presage.schedulers.kubernetes.kubernetes_names import GATE, JOB_FEATURES
from presage.schedulers.what_if.answer import Verdict
from presage.schedulers.what_if.what_if import what_if
from presage.serving.client.job_features import to_json
from tests.features.examples import features
from tests.schedulers.kubernetes.gated import gated_cluster
from tests.schedulers.kubernetes.manifests import node, pod

RUN_S = 1000.0
WITH_FEATURES: dict[str, Any] = {"annotations": {JOB_FEATURES: to_json(features())}}


class Certain:
    """Forecaster that predicts one run time of all jobs with features."""

    def predictions(self, requests):
        return [
            RuntimePrediction(RUN_S, 1000, 2**30) if job.features else None for job, _ in requests
        ]

    def slowdowns(self, requests):
        return [None] * len(requests)


def asked(cluster, *gangs: str, forecaster=Certain):
    snapshot = copy_gate(cluster.gate, cluster.snapshot(), cluster.now_s)
    return what_if(
        snapshot,
        list(gangs or snapshot.pending),
        policy="gang",
        forecaster=forecaster(),
        samples=10,
    )


def begin(cluster) -> None:
    """Set the start times of the bound pods, which the node's agent does."""
    text = datetime.fromtimestamp(cluster.now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for one in cluster.server.all("pods"):
        if one["spec"].get("nodeName") and "startTime" not in one["status"]:
            one["status"]["startTime"] = text


def test_a_gang_starts_when_the_pods_before_it_are_forecast_to_end():
    with gated_cluster(node("n0", gpus=2), node("n1", gpus=2), forecaster=Certain) as cluster:
        cluster.create_gang("first", 3, **WITH_FEATURES)
        cluster.settle()
        begin(cluster)
        cluster.advance(400)
        cluster.create_gang("second", 4, **WITH_FEATURES)
        cluster.advance(1)
        cluster.create_gang("third", 4, **WITH_FEATURES)
        second, third = asked(cluster, "default/second", "default/third")
        assert second.start.quantile_s(0.5) == pytest.approx(600, abs=2)
        assert third.start.quantile_s(0.5) == pytest.approx(1600, abs=2)
        assert second.end.quantile_s(0.5) == pytest.approx(1600, abs=2)


def test_an_idle_cluster_starts_a_gang_now():
    with gated_cluster(node("n0", gpus=4), forecaster=Certain) as cluster:
        cluster.create_gang("one", 4, **WITH_FEATURES)
        (answer,) = asked(cluster)
        assert (answer.job_id, answer.start.quantile_s(0.9)) == ("default/one", 0.0)


def test_without_forecasts_the_start_behind_running_pods_is_unknown():
    with gated_cluster(node("n0", gpus=4)) as cluster:
        cluster.create_gang("one", 4)
        cluster.settle()
        cluster.create_gang("two", 4)
        (answer,) = asked(cluster, forecaster=NoForecasts)
        assert answer.verdict is Verdict.UNKNOWN
        assert "cannot be predicted" in answer.why


def test_an_active_deadline_is_a_time_limit():
    with gated_cluster(node("n0", gpus=4)) as cluster:
        cluster.create_gang("one", 4, activeDeadlineSeconds=300)
        cluster.settle()
        begin(cluster)
        cluster.advance(100)
        cluster.create_gang("two", 4)
        (answer,) = asked(cluster, "default/two", forecaster=NoForecasts)
        assert answer.verdict is Verdict.PREDICTED
        assert 0 < answer.start.quantile_s(0.5) <= 200


def test_pods_that_terminate_end_by_the_time_of_their_deletion():
    with gated_cluster(node("n0", gpus=4), forecaster=Certain) as cluster:
        cluster.create_gang("one", 4, **WITH_FEATURES)
        cluster.settle()
        begin(cluster)
        cluster.advance(100)
        cluster.create_gang("two", 4, **WITH_FEATURES)
        snapshot = cluster.snapshot()
        text = datetime.fromtimestamp(cluster.now_s + 30, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for one in snapshot.pods.values():
            if one["spec"].get("nodeName"):
                one["metadata"]["deletionTimestamp"] = text
        copied = copy_gate(cluster.gate, snapshot, cluster.now_s)
        (answer,) = what_if(copied, ["default/two"], policy="gang", forecaster=Certain(), samples=5)
        assert answer.start is not None
        assert answer.start.quantile_s(0.5) == pytest.approx(30, abs=2)


def test_gangs_that_cannot_be_planned_say_why():
    with gated_cluster(node("n0", gpus=4), forecaster=Certain) as cluster:
        cluster.create_gang("incomplete", 2, min_member=3)
        cluster.server.create("pods", pod("orphan", gpus=1, gates=[GATE]))
        incomplete, orphan = asked(cluster, "default/incomplete", "default/pod/orphan")
        assert incomplete.verdict is orphan.verdict is Verdict.UNKNOWN
        assert "fewer gated pods than minMember 3" in incomplete.why
        assert "has no controller" in orphan.why


def test_a_gang_larger_than_the_cluster_is_impossible():
    with gated_cluster(node("n0", gpus=4), forecaster=Certain) as cluster:
        cluster.create_gang("large", 5, **WITH_FEATURES)
        snapshot = copy_gate(cluster.gate, cluster.snapshot(), cluster.now_s)
        waiting = "default/large"
        (answer,) = asked(cluster, waiting)
        assert answer.verdict is not Verdict.PREDICTED
        assert waiting in {*snapshot.pending, *snapshot.closed}


def test_the_question_changes_nothing():
    with gated_cluster(node("n0", gpus=4), forecaster=Certain) as cluster:
        cluster.create_gang("one", 4, **WITH_FEATURES)
        before = cluster.server.version
        asked(cluster)
        assert cluster.server.version == before


def test_a_cluster_without_devices_is_refused():
    with (
        gated_cluster(node("n0", gpus=0)) as cluster,
        pytest.raises(ConfigError, match="no node has devices"),
    ):
        asked(cluster)
