"""Tests of the details of events."""

from __future__ import annotations

from presage.schedulers.live.controller.explanations.event_sentences import event_details
from presage.schedulers.live.controller.journal.records import NodeJoined, Pruned


def test_numbers_in_events_have_the_right_noun():
    assert event_details(NodeJoined("a", "agent", [["v100", 1]], 0.0)) == "1 device"
    assert event_details(Pruned(["x"], ["a", "b"], 0.0)) == "1 ended job, 2 lost nodes"
