"""Tests of the details of events."""

from __future__ import annotations

from dataclasses import replace

from presage.schedulers.live.controller.explanations.event_sentences import event_details
from presage.schedulers.live.controller.journal.records import MemberEnded, NodeJoined, Pruned


def test_the_end_of_a_worker_that_left_does_not_repeat_all_of_the_reason_of_the_size():
    reason = (
        "worker m3: it shrinks from 3 to 1 for other, predicted 0.50 times as fast; that is all"
    )
    left = MemberEnded("job", 1, 3, reason, finished=False, failed=False, time_s=0.0)
    failed = replace(left, reason="worker m3: status 1; see its log", failed=True)

    assert event_details(left) == "worker m3: it shrinks from 3 to 1 for other"
    assert event_details(failed) == failed.reason


def test_numbers_in_events_have_the_right_noun():
    assert event_details(NodeJoined("a", "agent", [["v100", 1]], 0.0)) == "1 device"
    assert event_details(Pruned(["x"], ["a", "b"], 0.0)) == "1 ended job, 2 lost nodes"
