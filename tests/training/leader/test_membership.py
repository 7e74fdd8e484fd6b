"""Membership as a state machine: the workers of the next generation, and those with its state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import ElasticError
from presage.training.data_set_grouping import Cursor
from presage.training.leader.job_config import JobConfig
from presage.training.leader.membership import Membership
from presage.training.leader.moves import End, Fail, Finish, Form, Pause, Release, Save, Suspend
from presage.training.leader.worker import Worker, WorkerState
from presage.training.report import Report


def membership(workers=2, low=1, high=8):
    return Membership(JobConfig(workers, low, high), workers)


def connect(members, *names):
    for name in names:
        members.add(Worker(name, "host", 1))
        members.enter_report(name, Report(0, "ready"))


def form(members):
    move = members.next_move()
    assert isinstance(move, Form), move
    members.adopt(move)
    return move


def run(members, step=0):
    """Let all members of the current generation run."""
    for one in members.members():
        members.enter_report(
            one.worker_id,
            Report(members.generation.number, "running", Cursor(step), has_state=True),
        )


def pause(members, *names, step=0, **more):
    for name in names:
        report = Report(members.generation.number, "paused", Cursor(step), has_state=True, **more)
        members.enter_report(name, report)


def started(count, **limits):
    members = membership(count, **limits)
    connect(members, *"abcdefgh"[:count])
    form(members)
    run(members)
    return members


def ids(generation):
    return [one.worker_id for one in generation.members]


def test_a_job_starts_when_all_its_workers_are_ready():
    members = membership(2)
    connect(members, "a")
    assert members.next_move() is None
    connect(members, "b")

    generation = form(members).generation

    assert (ids(generation), generation.receivers, generation.entry) == (
        ["a", "b"],
        ("b",),
        "train",
    )
    assert members.next_move() is None


def test_a_job_starts_with_the_minimum_when_its_start_is_overdue():
    members = membership(3, low=1)
    connect(members, "a")
    members.is_start_overdue = True

    assert ids(form(members).generation) == ["a"]


def test_no_generation_is_larger_than_the_capacity_and_the_others_stay_ready():
    members = membership(4)
    members.capacity = 2
    connect(members, "a", "b", "c", "d")

    assert ids(form(members).generation) == ["a", "b"]
    run(members)
    assert members.next_move() is None
    members.leave("a")
    assert members.next_move() == Pause()
    pause(members, "a", "b", step=4)
    assert ids(form(members).generation) == ["b", "c"]
    assert members.workers["d"].state is WorkerState.READY


def test_s7_a_newcomer_joins_only_when_it_is_ready_and_all_have_paused():
    members = started(2)
    members.resize(3)
    members.add(Worker("c", "host", 1))
    assert members.next_move() is None  # it is joining
    members.enter_report("c", Report(0, "ready"))

    assert members.next_move() == Pause()
    assert members.next_move() is None  # once
    pause(members, "a", step=5)
    assert members.next_move() is None
    pause(members, "b", step=5)
    generation = form(members).generation

    assert ids(generation) == ["a", "b", "c"]
    assert generation.receivers == ("c",)
    assert (generation.entry, generation.cursor) == ("breakpoint", Cursor(5))


def test_s8_members_leave_at_a_step_boundary_and_the_last_rank_leaves_first():
    members = started(3)
    members.resize(2)
    assert members.workers["c"].state is WorkerState.LEAVING
    assert members.next_move() == Pause()
    pause(members, "a", "b", "c", step=4)

    move = form(members)

    assert (ids(move.generation), move.released, move.generation.receivers) == (
        ["a", "b"],
        ("c",),
        (),
    )
    assert "c" not in members.workers


def test_s8_the_survivor_that_committed_furthest_is_the_source():
    members = started(3)
    members.remove("a")
    assert members.next_move() == End()
    pause(members, "b", step=7, is_broken=True)
    pause(members, "c", step=8, is_broken=True)

    generation = form(members).generation

    assert ids(generation) == ["c", "b"]
    assert generation.receivers == ("b",)
    assert generation.cursor == Cursor(8)


def test_a_leaving_member_stays_while_only_it_has_the_last_step():
    members = started(2)
    members.resize(1)
    pause(members, "a", step=3, is_broken=True)
    pause(members, "b", step=4, is_broken=True)

    first = form(members)
    assert ids(first.generation) == ["b", "a"]
    run(members, step=4)
    assert members.next_move() == Pause()
    pause(members, "a", "b", step=5)

    assert ids(form(members).generation) == ["a"]


def test_a_leaving_member_stays_if_the_others_die():
    members = started(2)
    members.resize(1)
    members.remove("a")

    assert members.workers["b"].state is WorkerState.MEMBER


def test_s8_a_member_that_requests_to_leave_does_so_for_good():
    members = started(3)
    assert not members.leave("a")
    members.resize(3)
    assert members.workers["a"].state is WorkerState.LEAVING
    assert members.next_move() == Pause()
    pause(members, "a", "b", "c", step=4)

    move = form(members)

    assert (ids(move.generation), move.released) == (["b", "c"], ("a",))


def test_a_worker_that_is_no_member_leaves_at_once():
    members = started(1)
    connect(members, "b")

    assert members.leave("b")
    assert "b" not in members.workers


def test_members_that_leave_hand_the_state_to_workers_that_are_ready():
    members = started(2)
    connect(members, "c", "d")
    members.leave("a")
    members.leave("b")
    pause(members, "a", "b", step=4)

    first = form(members)
    assert (ids(first.generation), first.generation.receivers) == (["a", "c"], ("c",))
    assert first.released == ("b",)
    run(members, step=4)
    assert members.next_move() == Pause()
    pause(members, "a", "c", step=5)

    last = form(members)
    assert (ids(last.generation), last.released) == (["c", "d"], ("a",))


def test_below_the_minimum_a_leaving_member_saves_before_it_is_released():
    members = started(2, low=2)
    members.leave("b")
    assert members.next_move() == Pause()
    pause(members, "a", step=4)
    pause(members, "b", step=5)  # it committed furthest

    assert members.next_move() == Save("b")
    assert members.next_move() is None
    members.enter_saved("b")
    assert members.next_move() == Release(("b",))
    members.remove("b")
    assert members.next_move() is None
    assert members.is_short()
    members.leave("a")
    assert members.next_move() == Suspend(Cursor(4))


def test_if_the_worker_that_saves_dies_the_next_one_is_requested():
    members = started(3, low=3)
    members.leave("a")
    pause(members, "a", "b", "c", step=4)
    assert members.next_move() == Save("a")
    members.remove("a")

    assert members.next_move() == Save("b")
    members.reconnect("b", "host", 2)
    assert members.next_move() == Save("b")


def test_a_job_whose_members_all_leave_is_suspended_after_a_checkpoint():
    members = started(2)
    members.leave("a")
    members.leave("b")
    pause(members, "a", "b", step=4)

    assert members.next_move() == Save("a")
    members.enter_saved("a")
    assert members.next_move() == Suspend(Cursor(4))


def test_workers_without_a_listed_name_leave_first_and_do_not_join():
    members = started(3)
    connect(members, "x.1")
    members.resize(3, ["b", "c", "y"])
    assert members.workers["a"].state is WorkerState.LEAVING
    pause(members, "a", "b", "c", step=4)
    assert ids(form(members).generation) == ["b", "c"]
    run(members, step=4)
    connect(members, "y.2")
    assert members.next_move() == Pause()
    pause(members, "b", "c", step=5)
    assert ids(form(members).generation) == ["b", "c", "y.2"]
    run(members, step=5)
    members.resize(4)  # without names, any worker may join
    assert members.next_move() == Pause()
    pause(members, "b", "c", "y.2", step=6)
    assert "x.1" in ids(form(members).generation)


def test_a_member_without_a_listed_name_stays_until_enough_others_are_ready():
    members = started(1)
    members.resize(1, ["m"])
    assert members.workers["a"].state is WorkerState.MEMBER
    assert members.next_move() is None
    connect(members, "m.1")
    assert members.next_move() == Pause()
    pause(members, "a", step=4)
    assert ids(form(members).generation) == ["a", "m.1"]
    run(members, step=4)
    assert members.next_move() == Pause()
    pause(members, "a", "m.1", step=5)

    assert ids(form(members).generation) == ["m.1"]


def test_a_broken_ring_ends_the_generation_also_without_a_death():
    members = started(3)
    pause(members, "b", step=2, is_broken=True)

    assert members.next_move() == End()
    assert members.next_move() is None


def test_below_the_minimum_a_job_is_saved_and_waits_for_workers():
    members = started(2, low=2)
    members.remove("b")
    assert members.next_move() == End()
    pause(members, "a", step=2, is_broken=True)
    assert members.next_move() == Save("a")
    assert members.next_move() is None
    members.enter_saved("a")
    assert members.next_move() is None
    connect(members, "c")

    assert ids(form(members).generation) == ["a", "c"]


def test_a_job_is_done_when_all_members_are_at_the_end():
    members = started(2)
    pause(members, "a", step=9, is_finished=True)
    assert members.next_move() is None
    pause(members, "b", step=9, is_finished=True)

    assert members.next_move() == Finish(Cursor(9))


def test_a_member_that_missed_the_last_step_gets_it_before_the_job_is_done():
    members = started(2)
    pause(members, "a", step=9, is_finished=True)
    pause(members, "b", step=8, is_broken=True)

    assert form(members).generation.receivers == ("b",)


def test_a_job_fails_when_no_parameters_are_left():
    members = started(1)
    pause(members, "a", step=1)
    form(members)
    run(members, 1)
    members.remove("a")
    connect(members, "b")

    move = members.next_move()

    assert isinstance(move, Fail)
    assert "start it from a checkpoint" in move.reason


def test_a_report_of_a_removed_member_does_not_make_it_ready():
    members = started(2)
    members.remove("b")
    members.add(Worker("b2", "host", 1))
    members.enter_report("b2", Report(1, "paused", Cursor(3), has_state=True))

    assert members.workers["b2"].state is WorkerState.JOINING


def test_sizes_outside_the_bounds_and_duplicates_are_rejected():
    members = started(2, low=2, high=3)

    for size in (1, 4):
        with pytest.raises(ElasticError, match="outside the job's bounds, 2 to 3"):
            members.resize(size)
    with pytest.raises(ElasticError, match="connected already"):
        members.add(Worker("a", "host", 1))


@given(st.data())
def test_s8_whatever_happens_members_have_the_state_and_committed_steps_stay(data):
    """Deaths, joins, sizes and lost steps at random: laws of every generation."""
    members = started(3)
    members.capacity = data.draw(st.integers(3, 8))
    committed = dict.fromkeys("abc", 0)  # steps in the parameters of each worker
    names = iter(range(1000))
    for _ in range(data.draw(st.integers(1, 25))):
        alive = [one.worker_id for one in members.members()]
        event = data.draw(st.sampled_from(("kill", "join", "resize", "step", "lost step")))
        if event == "kill" and len(alive) > 1:
            dead = data.draw(st.sampled_from(alive))
            members.remove(dead)
            committed.pop(dead)
        elif event == "join":
            connect(members, f"n{next(names)}")
        elif event == "resize":
            members.resize(data.draw(st.integers(1, 8)))
        before = max(committed[one.worker_id] for one in members.members())
        behind = event == "lost step"
        for i, one in enumerate(members.members()):
            committed[one.worker_id] += 0 if behind and i == 0 else event in ("step", "lost step")
        move = members.next_move()
        if isinstance(move, Pause | End) or behind:
            for one in members.members():
                step = committed[one.worker_id]
                pause(members, one.worker_id, step=step, is_broken=behind)
            move = members.next_move()
        if isinstance(move, Form):
            source = move.generation.source.worker_id
            assert move.generation.size <= members.capacity
            assert committed[source] == move.generation.cursor.step >= before
            assert committed[source] == max(committed[w.worker_id] for w in members.members())
            for member in move.generation.members:
                if member.worker_id not in move.generation.receivers:
                    assert committed[member.worker_id] == committed[source]
                committed[member.worker_id] = committed[source]
            members.adopt(move)
            run(members, committed[source])
            assert members.is_formed()
