"""The leader: journal before announcement, restarts, successors and full disks; without torch."""

from __future__ import annotations

import errno

import pytest

from presage.errors import ElasticError
from presage.training import job_management
from presage.training.data_set_grouping import Cursor
from presage.training.generation import Generation, Member
from presage.training.job_management import Leader
from presage.training.leader.job_config import JobConfig
from presage.training.leader.journal import Journal
from presage.training.leader.membership import Membership
from presage.training.leader.worker import Worker
from presage.training.report import Report

SPECIFICATION = {
    "model": "m", "optimizer": "SGD", "samples": 100, "data_set": "", "batch": 8, "seed": 0,
    "virtual_shards": 0,
}  # fmt: skip
READY = Report(0, "ready")


class Channel:
    """Records what a worker is sent."""

    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)

    def close(self):
        self.sent.append({"op": "closed"})

    def operations(self):
        return [message["op"] for message in self.sent]


def make_leader(path, workers=2, **settings):
    config = JobConfig(workers, **settings)
    return Leader("job", config, Journal(path / "journal"), lambda _: None)


def join(leader, *names, report=READY, generation=None, **changes):
    channels = [Channel() for _ in names]
    for name, channel in zip(names, channels, strict=True):
        worker, specification = Worker(name, "host", 1), SPECIFICATION | changes
        leader.connect(worker, specification, report, channel, generation)
    return channels


def running(leader, *names):
    number = leader.membership.generation.number
    for name in names:
        leader.enter_report(name, Report(number, "running", Cursor(), has_state=True))


def die(*_args):
    raise KeyboardInterrupt


def paused(number, step):
    return Report(number, "paused", Cursor(step, 0, 8 * step), has_state=True)


def test_a_generation_is_in_the_journal_before_it_is_announced(tmp_path, monkeypatch):
    leader = make_leader(tmp_path)
    events = []
    append = leader.journal.append

    def noted(record):
        events.append(record["type"])
        append(record)

    monkeypatch.setattr(leader.journal, "append", noted)
    monkeypatch.setattr(Channel, "send", lambda _, message: events.append(f"> {message['op']}"))

    join(leader, "a", "b")

    assert events == ["job", "> welcome", "> welcome", "generation", "> generation", "> generation"]


def test_a_leader_that_died_between_journal_and_announcement_repeats_it(tmp_path, monkeypatch):
    leader = make_leader(tmp_path)
    join(leader, "a", "b")
    running(leader, "a", "b")
    leader.resize(3)
    join(leader, "c")
    with monkeypatch.context() as patch:  # the leader dies after it wrote the second generation
        patch.setattr(Membership, "adopt", die)
        leader.enter_report("a", paused(1, 4))
        with pytest.raises(KeyboardInterrupt):
            leader.enter_report("b", paused(1, 4))

    again = make_leader(tmp_path)
    a, b = join(again, "a", "b", report=paused(1, 4))
    (c,) = join(again, "c")

    for channel in (a, b, c):
        assert channel.operations() == ["welcome", "generation"]
        assert channel.sent[1]["generation"] == 2
        assert channel.sent[1]["cursor"] == Cursor(4, 0, 32).to_message()
    assert c.sent[1]["receivers"] == ["c"]
    assert again.membership.desired == 3


def test_a_leader_that_died_before_a_resize_was_journalled_forms_it_again(tmp_path):
    leader = make_leader(tmp_path)
    join(leader, "a", "b")
    running(leader, "a", "b")
    leader.resize(3)

    again = make_leader(tmp_path)
    (a,) = join(again, "a", report=paused(1, 4))
    (b,) = join(again, "b", report=Report(1, "running", Cursor(4, 0, 32), has_state=True))
    join(again, "c")

    assert b.operations() == ["welcome", "pause"]
    again.enter_report("b", paused(1, 4))
    assert [m["generation"] for m in (a.sent[-1], b.sent[-1])] == [2, 2]


def test_a_pause_is_requested_again_of_members_that_connect_after_the_newcomer(tmp_path):
    leader = make_leader(tmp_path)
    join(leader, "a", "b")
    running(leader, "a", "b")
    leader.resize(3)

    again = make_leader(tmp_path)
    join(again, "c")
    (a,) = join(again, "a", report=Report(1, "running", Cursor(4, 0, 32), has_state=True))

    assert a.operations() == ["welcome", "pause"]


def test_a_leader_that_restarts_removes_members_that_do_not_come_back(tmp_path):
    leader = make_leader(tmp_path, silence_s=5.0)
    join(leader, "a", "b")
    running(leader, "a", "b")

    again = make_leader(tmp_path, silence_s=5.0)
    (a,) = join(again, "a", report=Report(1, "running", Cursor(2), has_state=True))
    again.tick(0.0)
    again.channels.last_message_s["b"] -= 6.0
    again.tick(0.0)

    assert "b" not in again.membership.workers
    assert a.operations() == ["welcome", "end"]


def test_a_leader_that_was_stopped_does_not_take_its_own_pause_for_the_workers_silence(tmp_path):
    leader = make_leader(tmp_path, silence_s=5.0)
    join(leader, "a", "b")
    for name in ("a", "b"):
        leader.channels.last_message_s[name] -= 6.0

    leader.tick(6.0)

    assert set(leader.membership.workers) == {"a", "b"}


def test_generations_that_take_no_step_are_formed_less_and_less_often(tmp_path):
    leader = make_leader(tmp_path)
    join(leader, "a", "b")
    for _ in range(20):  # the two cannot connect to each other
        number = leader.membership.generation.number
        broken = Report(number, "paused", Cursor(), has_state=True, is_broken=True)
        leader.enter_report("a", broken)
        leader.enter_report("b", broken)

    assert leader.membership.generation.number < 8


def test_a_released_worker_that_missed_its_release_is_released_again(tmp_path):
    leader = make_leader(tmp_path)
    join(leader, "a", "b")
    running(leader, "a", "b")
    leader.resize(1)
    leader.enter_report("a", paused(1, 4))
    leader.enter_report("b", paused(1, 4))

    again = make_leader(tmp_path)
    (b,) = join(again, "b", report=paused(1, 4))

    assert b.operations() == ["leave"]


GENERATION = Generation(7, (Member("a", "h", 1), Member("b", "h", 2)), (), Cursor(4, 0, 32), "b")


def test_a_leader_without_a_journal_adopts_the_generation_of_its_workers(tmp_path):
    leader = make_leader(tmp_path, workers=1)
    report = Report(7, "running", Cursor(6, 0, 48), has_state=True)
    (c,) = join(leader, "c", report=Report(0, "joining"))
    (a,) = join(leader, "a", report=report, generation=GENERATION)
    (b,) = join(leader, "b", report=report, generation=GENERATION)

    assert a.operations() == b.operations() == ["welcome"]
    assert leader.current == 7
    assert leader.committed == Cursor(4, 0, 32)
    assert leader.membership.desired == 2  # the size that the job has, not that of its start
    records = Journal(tmp_path / "journal").records
    assert [r["type"] for r in records] == ["job", "adopted", "formed"]

    again = make_leader(tmp_path, workers=1)
    assert (again.current, again.membership.desired) == (7, 2)
    assert c.operations() == ["welcome"]


def test_an_adopting_leader_prefers_a_newer_generation_and_removes_older_workers(tmp_path):
    leader = make_leader(tmp_path)
    old = Generation(5, (Member("c", "h", 3), Member("d", "h", 4)), (), Cursor(2, 0, 16), "b")
    (c,) = join(leader, "c", report=paused(5, 2), generation=old)
    (b,) = join(leader, "b")  # it has not received generation 7 yet
    (a,) = join(leader, "a", report=paused(6, 4), generation=GENERATION)
    (e,) = join(leader, "e", report=paused(4, 1), generation=old)

    assert leader.current == 7
    assert set(leader.membership.workers) == {"a", "b", "c", "e"}
    assert c.operations() == e.operations() == ["welcome", "removed"]
    assert b.operations() == a.operations() == ["welcome", "generation"]
    leader.enter_report("c", READY)
    assert leader.membership.workers["c"].state == "ready"


def test_a_leader_that_formed_a_generation_of_its_own_adopts_none(tmp_path):
    leader = make_leader(tmp_path, workers=1)
    join(leader, "c")
    assert leader.current == 1
    (a,) = join(leader, "a", report=paused(7, 4), generation=GENERATION)

    assert leader.current == 1
    assert a.operations() == ["welcome", "removed"]


def test_committed_cursors_in_the_journal_are_those_that_all_members_have(tmp_path):
    leader = make_leader(tmp_path)
    join(leader, "a", "b")
    running(leader, "a")
    assert [r["type"] for r in Journal(tmp_path / "journal").records] == ["job", "generation"]

    running(leader, "b")

    assert Journal(tmp_path / "journal").records[-1]["type"] == "formed"


def test_with_a_full_disk_nothing_is_announced_and_the_job_continues_when_there_is_space(
    tmp_path, monkeypatch
):
    leader = make_leader(tmp_path)
    join(leader, "a")
    with monkeypatch.context() as patch:

        def full(_descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr("presage.training.leader.journal.os.fsync", full)
        (b,) = join(leader, "b")
        assert b.operations() == ["welcome"]
        assert "No space left on device" in leader.problem
        with pytest.raises(OSError, match="No space left"):
            leader.resize(1)
        assert leader.membership.desired == 2

    leader.tick(0.0)

    assert b.operations() == ["welcome", "generation"]
    assert leader.problem == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "other"}, "another model than the job: its parameters or buffers have other"),
        ({"samples": 99}, "another samples than the job: another number of samples"),
        ({"data_set": "x"}, "another data_set than the job: another digest"),
        ({"batch": 9}, "another batch"),
    ],
)
def test_a_worker_with_another_model_or_data_set_is_rejected(tmp_path, changes, message):
    leader = make_leader(tmp_path)
    join(leader, "a")

    with pytest.raises(ElasticError, match=message):
        join(leader, "b", **changes)


def test_a_batch_smaller_than_the_number_of_workers_is_rejected(tmp_path):
    leader = make_leader(tmp_path, workers=9, min_workers=9)
    with pytest.raises(ElasticError, match="batch=8 is less than 9 workers"):
        join(leader, "a")

    small = make_leader(tmp_path / "..", workers=2)
    join(small, "a")
    with pytest.raises(ElasticError, match="batch=8 is less than 10 workers"):
        small.resize(10)


def test_more_workers_than_virtual_shards_are_rejected(tmp_path):
    least = make_leader(tmp_path, workers=5, min_workers=5)
    with pytest.raises(ElasticError, match="virtual_shards=4 is less than 5 workers"):
        join(least, "a", virtual_shards=4)

    (tmp_path / "two").mkdir()
    leader = make_leader(tmp_path / "two", workers=2)
    join(leader, "a", "b", virtual_shards=4)
    with pytest.raises(ElasticError, match="virtual_shards=4 is less than 5 workers") as error:
        leader.resize(5)
    assert "\n" not in str(error.value)
    assert (leader.membership.desired, leader.resize_requests) == (2, 0)


@pytest.mark.parametrize(("changes", "most"), [({"virtual_shards": 3}, 3), ({"batch": 4}, 4)])
def test_a_job_of_more_workers_than_it_can_use_trains_with_those_it_can(tmp_path, changes, most):
    leader = make_leader(tmp_path, workers=6)
    leader.resize(6, list("abcdef"))  # before the leader knows what the job trains
    join(leader, *"abcdef", **changes)

    assert leader.membership.generation.size == most
    states = [str(one.state) for one in leader.membership.workers.values()]
    assert states.count("ready") == 6 - most
    running(leader, *"abcdef"[:most])
    leader.lose("a", "ended")
    number = leader.membership.generation.number
    for name in "bcdef"[: most - 1]:
        leader.enter_report(name, paused(number, 4))
    assert leader.membership.generation.size == most  # one that was ready takes its place

    again = make_leader(tmp_path, workers=6)
    assert again.membership.capacity == most
    assert again.membership.next_move() is None


def successor(path, **settings):
    return make_leader(path, workers=1, is_successor=True, **settings)


def test_a_successor_waits_for_members_of_an_earlier_generation(tmp_path):
    leader = successor(tmp_path)
    (c,) = join(leader, "c")
    leader.tick(0.0)
    assert leader.current == 0
    report = Report(7, "running", Cursor(6, 0, 48), has_state=True)
    (a,) = join(leader, "a", report=report, generation=GENERATION)

    assert leader.current == 7
    assert c.operations() == a.operations() == ["welcome"]


def test_a_successor_starts_from_scratch_if_only_newcomers_connect(tmp_path):
    leader = successor(tmp_path, start_timeout_s=0.01)
    join(leader, "c")
    leader.tick(0.0)
    assert leader.current == 0
    leader.first_ready_s -= 1.0
    leader.tick(0.0)

    assert leader.current == 1
    assert successor(tmp_path).current == 1  # its journal has the generation


def test_s9_the_four_modules_are_four_files():
    names = (
        "job_management", "data_set_grouping", "gpu_expansion", "synchronous_accumulation"
    )  # fmt: skip
    folder = job_management.__file__.rpartition("/")[0]

    for name in names:
        module = __import__(f"presage.training.{name}", fromlist=["x"])
        assert module.__file__ == f"{folder}/{name}.py"
        assert (
            (module.__doc__ or "")
            .lower()
            .startswith(name.replace("_", " ").replace("data set", "data-set"))
        )
