"""Events of promotions, refusals and rollbacks: one each, after the registry has recorded it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from presage.errors import ConfigError
from presage.models.registry.registry import Registry
from presage.pipelines.stages import promote as stage
from tests.system.notifications.receiver import receiver


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv("http_proxy", raising=False)
    with receiver() as started:
        monkeypatch.setenv("PRESAGE_WEBHOOK", started.url)
        yield started


def test_a_promotion_and_a_rollback_are_sent_once_when_they_are_in_the_journal(two, server):
    recorded = []

    def record():
        champion = Registry(two.uri).champion()
        assert champion is not None
        recorded.append(champion.version)

    server.before_answer = record
    two.promote(2, reason="better", by="ada@lab")
    two.promote(2)  # changes nothing
    two.rollback(reason="slow")

    assert server.types == ["presage.release.promoted", "presage.release.rolled_back"]
    assert recorded == [2, 1]
    good, poor = (release.release_id for release in two.versions())
    assert server.events[0]["subject"] == poor
    assert server.events[0]["source"].endswith("/registry")
    assert server.events[0]["data"] == {
        "model": "presage", "release": poor, "version": 2, "previous_release": good,
        "previous_version": 1, "verdict": "gate", "reason": "better", "by": "ada@lab",
    }  # fmt: skip
    assert server.events[1]["data"]["verdict"] == "rollback"
    assert server.events[1]["subject"] == good


def test_a_refusal_is_sent_once_although_the_stage_runs_again(
    releases, uri, features_dir, policy, tmp_path, server
):
    calm = replace(policy, latency_us=1e5, latency_ratio=1e3)

    def run(release):
        target = tmp_path / "decision.json"
        stage.promote(release, features_dir, target, uri=uri, policy=calm)
        return json.loads(target.read_text())

    run(releases["good"])
    decided = run(releases["poor"])
    run(releases["poor"])
    run(releases["good"])

    assert server.types == ["presage.release.promoted", "presage.release.refused"]
    poor, good = releases["poor"].release_id, releases["good"].release_id
    assert server.events[1]["data"] == {
        "model": "presage", "release": poor, "champion": good, "reason": decided["reason"],
    }  # fmt: skip
    assert len(server.requests) == 2


def test_a_promotion_counts_although_the_receiver_fails(two, server, capsys):
    server.statuses = [404]
    assert two.promote(2).aliases == ("champion",)
    assert capsys.readouterr().err.startswith("warning: event presage.release.promoted was not")


def test_an_invalid_webhook_is_an_error_before_anything_changes(two, monkeypatch):
    monkeypatch.setenv("PRESAGE_WEBHOOK", "alerts.example.org")
    with pytest.raises(ConfigError, match="PRESAGE_WEBHOOK"):
        two.promote(2)
    assert two.champion().version == 1
