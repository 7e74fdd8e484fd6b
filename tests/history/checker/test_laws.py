"""Each law is broken by a history written by hand, and that is noticed; a sound one breaks none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.history.checker.laws import LAWS, check
from tests.history.checker.story import Story, first_attempt, second_attempt, sound


def over(story: Story, phase: str = "FINISHED", attempt: int = 1) -> Story:
    """Job a ends, and all is read at the end."""
    story.event("Ended", "a", f"{phase.lower()} after 1 s")
    return story.list(("a", phase, attempt), process="final").left()


def lost_for_good() -> Story:
    return Story().submit("a").event("Submitted", "a").list(process="final").left()


def never_over() -> Story:
    return first_attempt().list(("a", "RUNNING", 1), process="final").left()


def ended_twice() -> Story:
    return over(over(first_attempt().ledger("end", "a", 1)))


def known_though_refused() -> Story:
    story = Story().do("c0", "submit", ["a"], "no room: free space on its disk", "fail")
    return over(story.event("Submitted", "a"), "CANCELLED", 0)


def nothing_answers() -> Story:
    return Story().submit("a").left()


def half_of_a_batch() -> Story:
    story = Story().do("c0", "submit", ["a", "b"], "no answer", "unknown").event("Submitted", "a")
    return (
        story.cancel("a")
        .event("Ended", "a", "cancelled")
        .list(("a", "CANCELLED", 0), process="final")
    )


def refused_the_second_time() -> Story:
    return first_attempt().do("c1", "submit", ["a"], "refused: another one", "fail")


def overlap() -> Story:
    return second_attempt().ledger("tick", "a", 1, 7).ledger("end", "a", 2, 10)


def beside() -> Story:
    return second_attempt().ledger("beside", "a", 2, 7)


def began_twice() -> Story:
    return first_attempt().ledger("begin", "a", 1, 5, pid=8)


def an_earlier_attempt_begins_later() -> Story:
    story = second_attempt().ledger("end", "a", 2, 10)
    return story.event("Placed", "a").ledger("begin", "a", 3, 5).ledger("begin", "a", 2, 5)


def alive_after_it_was_given_up() -> Story:
    story = first_attempt().event("Requeued", "a", "node n0 was not heard of for 14 s")
    return story.ledger("tick", "a", 1, 7)


def never_placed() -> Story:
    return Story().submit("a").event("Submitted", "a").ledger("begin", "a", 1)


def began_before_what_was_saved() -> Story:
    return first_attempt().ledger("end", "a", 1).ledger("begin", "a", 2, 3)


def read_before_it_was_known() -> Story:
    return Story().submit("a").do("c1", "read", "a", "absent", "fail")


def read_an_older_state() -> Story:
    return Story().submit("a").read(("a", "RUNNING", 1)).read(("a", "PLACED", 1), process="c1")


def forgotten_by_a_list() -> Story:
    return Story().submit("a").list(process="c1")


def new_twice() -> Story:
    return Story().submit("a").submit("a", process="c1")


def known_before_its_submission() -> Story:
    return Story().submit("a", known=["a"])


def another_job_of_its_name() -> Story:
    return Story().submit("a").do("c1", "submit another", ["a"], None)


def cancelled_without_a_cancel() -> Story:
    return Story().submit("a").read(("a", "CANCELLED", 0))


def placed_after_it_was_cancelled() -> Story:
    return Story().submit("a").cancel("a").read(("a", "PLACED", 1))


def a_refused_cancel_that_took_effect() -> Story:
    story = Story().submit("a").do("c1", "cancel", "a", "free space on its disk", "fail")
    return story.read(("a", "CANCELLED", 0))


def drained_and_read_as_not() -> Story:
    story = Story().do("c0", "drain", ["n0", True], None)
    return story.do("c1", "list", None, {"jobs": [], "entry": 0, "drained": {"n0": False}})


def an_older_journal() -> Story:
    return Story().event("ClusterCreated").event("NodeJoined").list().list(process="c1", entry=1)


def read_otherwise_than_the_events() -> Story:
    return first_attempt().read(("a", "PLACED", 1), entry=3)


def absent_though_submitted() -> Story:
    return Story().event("Submitted", "a").list()


def placed_after_its_end() -> Story:
    return first_attempt().event("Ended", "a", "finished").event("Placed", "a")


def a_gap() -> Story:
    return Story().event("ClusterCreated").event("NodeJoined", entry=3)


def twice() -> Story:
    return Story().event("ClusterCreated").event("NodeJoined").event("NodeJoined", entry=2)


def not_the_same_for_all() -> Story:
    return Story().event("ClusterCreated").event("NodeJoined", entry=1, watcher="w1")


def the_last_is_missing() -> Story:
    return Story().event("ClusterCreated").list(process="final", entry=2)


def the_first_is_missing() -> Story:
    return Story().event("NodeJoined", entry=2)


def another_end() -> Story:
    story = first_attempt().ledger("end", "a", 1).event("Ended", "a", "finished")
    return story.list(("a", "FINISHED", 1)).list(("a", "FAILED", 1), process="c1")


def alive_after_its_end() -> Story:
    return over(first_attempt().ledger("end", "a", 1)).ledger("tick", "a", 1, 9)


def began_after_its_cancel() -> Story:
    story = Story(lease_s=3.0).submit("a").event("Submitted", "a").event("Placed", "a").cancel("a")
    return story.later(30).ledger("begin", "a", 1)


def cancelled_and_not_over() -> Story:
    return first_attempt().cancel("a").list(("a", "LEAVING", 1), process="final")


def finished_without_its_end() -> Story:
    return over(first_attempt())


def cancelled_without_a_request() -> Story:
    return over(first_attempt(), "CANCELLED")


def two_controllers() -> Story:
    return Story().fault("second_controller", {"status": None})


def a_rival_on_the_port() -> Story:
    return Story().fault("rival_on_port", {"status": 0})


def a_process_is_left() -> Story:
    return sound().left("process 7 of a job")


def never_checked() -> Story:
    return Story()


BROKEN: dict[str, list[Callable[[], Story]]] = {
    "acknowledged is never lost": [
        lost_for_good, never_over, ended_twice, known_though_refused, nothing_answers,
    ],
    "together or not at all": [half_of_a_batch],
    "the same job is taken again": [refused_the_second_time],
    "attempts never overlap": [overlap, beside, began_twice, an_earlier_attempt_begins_later],
    "attempts are over when given up": [alive_after_it_was_given_up],
    "attempts are placed first": [never_placed],
    "saved work is kept": [began_before_what_was_saved],
    "jobs are linearizable": [
        read_before_it_was_known, read_an_older_state, forgotten_by_a_list, new_twice,
        known_before_its_submission, another_job_of_its_name, cancelled_without_a_cancel,
        placed_after_it_was_cancelled, a_refused_cancel_that_took_effect,
    ],
    "drains are linearizable": [drained_and_read_as_not],
    "reads are monotonic": [an_older_journal],
    "reads agree with events": [
        read_otherwise_than_the_events, absent_though_submitted, placed_after_its_end,
    ],
    "watchers see every event in order": [
        a_gap, twice, not_the_same_for_all, the_last_is_missing, the_first_is_missing,
    ],
    "what is over stays over": [another_end, alive_after_its_end],
    "cancelled jobs do not begin": [began_after_its_cancel, cancelled_and_not_over],
    "ends are true": [finished_without_its_end, cancelled_without_a_request],
    "second controllers are refused": [two_controllers, a_rival_on_the_port],
    "nothing is left over": [a_process_is_left, never_checked],
}  # fmt: skip


def test_a_sound_history_breaks_no_law():
    assert check(sound().entries) == []


def test_every_law_has_a_history_that_breaks_it():
    assert BROKEN.keys() == LAWS.keys()


@pytest.mark.parametrize(
    ("law", "story"),
    [
        pytest.param(law, story, id=f"{law}: {story.__name__}")
        for law, stories in BROKEN.items()
        for story in stories
    ],
)
def test_a_history_that_breaks_a_law_is_caught(law, story):
    assert law in {violation.law for violation in check(story().entries)}


def test_an_unknown_submission_may_take_effect_late_or_never():
    story = Story()
    story.do("c0", "submit", ["a"], "no answer", "unknown").do("c1", "read", "a", "absent", "fail")
    late = story.read(("a", "WAITING", 0), process="c1").submit("a", known=["a"])

    assert [v for v in check(late.entries) if v.law == "jobs are linearizable"] == []
    back = late.do("c1", "read", "a", "absent", "fail")
    assert [v for v in check(back.entries) if v.law == "jobs are linearizable"]


def test_reads_at_the_same_time_as_a_cancel_may_see_either():
    story = Story().submit("a")
    cancel = story.begin("c0", "cancel", "a")
    story.read(("a", "WAITING", 0), process="c1").read(("a", "CANCELLED", 0), process="c2")
    story.end(cancel)

    assert [v for v in check(story.entries) if v.law == "jobs are linearizable"] == []
    story.read(("a", "WAITING", 0), process="c1")
    assert [v for v in check(story.entries) if v.law == "jobs are linearizable"]
