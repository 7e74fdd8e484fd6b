"""Notifications of drift: when slices begin to drift, and again only after they had ceased to."""

from __future__ import annotations

from dataclasses import fields

import pytest

from presage.models.drift.drift_test import Row
from presage.serving.outcomes.drift_notification import notify_of_drift
from presage.system.notifications.webhook import Webhook, configured_webhook
from tests.system.notifications.receiver import receiver


@pytest.fixture
def server():
    with receiver() as started:
        yield started


def row(slice_name, drift="changed"):
    values = dict.fromkeys((field.name for field in fields(Row)), None)
    numbers = {"ratio": 1.5, "runs": 40, "drift": drift}
    return Row(**{**values, "quantity": "step_time_s", "slice_name": slice_name, **numbers})


def webhook_of(server) -> Webhook:
    found = configured_webhook({"PRESAGE_WEBHOOK": server.url})
    assert found is not None
    return found


def slices(server):
    return [[one["slice"] for one in event["data"]["slices"]] for event in server.events]


def test_only_slices_that_did_not_drift_before_are_sent(server, tmp_path):
    webhook = webhook_of(server)
    state = tmp_path / "folder" / "state.json"
    checks = [
        [row("", drift="")], [row("")], [row("")], [row(""), row("device a")], [row("device a")],
        [row("", drift="")], [row("device a")],
    ]  # fmt: skip
    for rows in checks:
        notify_of_drift(webhook, "one", rows, state)
    notify_of_drift(webhook, "two", [row("")], state)
    notify_of_drift(webhook, "one", [row("device a")], state)

    assert slices(server) == [[""], ["device a"], ["device a"], [""]]
    assert [event["data"]["release"] for event in server.events] == ["one", "one", "one", "two"]


def test_an_event_that_was_not_delivered_is_sent_by_the_next_check(server, tmp_path, capsys):
    webhook, state = webhook_of(server), tmp_path / "state.json"
    server.statuses = [404]
    notify_of_drift(webhook, "one", [row("")], state)
    assert "HTTP status 404" in capsys.readouterr().err
    assert not state.exists()
    notify_of_drift(webhook, "one", [row("")], state)
    notify_of_drift(webhook, "one", [row("")], state)
    assert len(server.requests) == 2


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"one": 3}'])
def test_a_damaged_file_does_not_stop_the_check(server, tmp_path, content):
    webhook, state = webhook_of(server), tmp_path / "state.json"
    state.write_text(content)
    notify_of_drift(webhook, "one", [row("")], state)
    assert slices(server) == [[""]]


def test_a_folder_that_cannot_be_written_is_a_warning(server, tmp_path, capsys):
    webhook = webhook_of(server)
    (tmp_path / "file").write_text("")
    notify_of_drift(webhook, "one", [row("")], tmp_path / "file" / "state.json")
    assert slices(server) == [[""]]
    assert capsys.readouterr().err.startswith("warning: ")
