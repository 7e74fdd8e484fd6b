"""Journal, and the text of the state in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from presage.collectives.arbiter import agreement, saved_state
from presage.collectives.arbiter.jobs import Job
from presage.collectives.arbiter.journal import Journal
from presage.collectives.core.fencing import JobPlan
from presage.collectives.core.messages import Ack, Admitted, Adopted, Hello
from presage.collectives.core.view import JobView
from presage.errors import JournalError

PLANS = [JobPlan("a", 2, JobView(0, 0, b"\1\1\1")), JobPlan("b", 2, JobView(0, 0, b"\0\1\0"))]


def states(name):
    """Return the state after each step of two changes."""
    state = agreement.receive(agreement.new_controller(name), Hello(5)).state
    found = [state]

    def take(step):
        found.append(step.state)
        return step.state

    state = take(agreement.propose(state, PLANS, ["a", "b"]))
    for job, rank in [("a", 0), ("a", 1), ("b", 0), ("b", 1)]:
        state = take(agreement.receive(state, Ack(job, rank, 1, 3)))
    fence = state.fence
    state = take(agreement.receive(state, Admitted(fence.incarnation, fence.token)))
    state = take(agreement.receive(state, Adopted("a", 0, 1)))
    if state.can_propose:
        state = take(agreement.propose(state, [PLANS[1], PLANS[0]._replace(view=JobView(0))], []))
        state = take(agreement.time_out(state))
    return found


@pytest.mark.parametrize("name", ["in_band", "two_phase"])
def test_i7_every_state_of_the_controller_survives_the_journal(name):
    for state in states(name):
        assert agreement.from_json(agreement.to_json(state)) == state
        job = Job("a", 2, b"t" * 32, 7, ("tor",), is_member=True)
        text = saved_state.to_text(state, 3, {"tor": 9}, [job])
        saved = saved_state.parse(text, name)
        assert (saved.controller, saved.incarnation, dict(saved.incarnations)) == (
            state, 3, {"tor": 9}
        )  # fmt: skip
        assert saved.jobs == (job,)


def test_a_journal_of_the_other_agreement_or_without_a_state_is_refused():
    text = saved_state.to_text(agreement.new_controller("in_band"), 0, {}, [])
    with pytest.raises(JournalError, match="--agreement in_band"):
        saved_state.parse(text, "two_phase")
    for wrong in ("{}", "no json", '{"controller": "{}", "jobs": []}', "[]"):
        with pytest.raises(JournalError, match="no state"):
            saved_state.parse(wrong, "in_band")


def test_what_was_written_is_read_after_a_kill(tmp_path):
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from presage.collectives.arbiter.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1])); journal.write('one'); journal.write('two')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "folder" / "arbiter.db"
    subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    journal = Journal(path)
    assert journal.read() == "two"
    journal.close()


def test_a_second_arbiter_with_the_same_journal_is_refused(tmp_path):
    first = Journal(tmp_path / "arbiter.db")
    with pytest.raises(JournalError, match="another arbiter"):
        Journal(tmp_path / "arbiter.db")
    first.close()
    Journal(tmp_path / "arbiter.db").close()


def test_a_file_that_is_no_journal_is_refused(tmp_path):
    path = tmp_path / "arbiter.db"
    path.write_bytes(b"something else" * 100)
    with pytest.raises(JournalError, match=r"arbiter\.db"):
        Journal(path)


def test_joining_jobs_have_a_floor_above_every_earlier_epoch():
    state = agreement.raise_epoch(agreement.new_controller("in_band"), 41)
    step = agreement.propose(state, PLANS[:1], ["a"])
    assert dict(step.state.fence.floors) == {"a": 42}
    assert step.state.fence.token == state.fence.token + 1


def test_grants_at_a_switch_that_is_lost_are_withdrawn():
    state = agreement.propose(agreement.new_controller("in_band"), PLANS, ["a", "b"]).state
    state = agreement.withdraw_grants(state, {"a"})
    found = agreement.receive(state, Admitted(state.fence.incarnation, state.fence.token)).state
    views = agreement.views_in_force(found)
    assert not any(reason & 1 for reason in views["a"].decisions)
    assert views["b"].is_allowed(1)
