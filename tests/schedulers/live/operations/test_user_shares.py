"""Quotas, fair share and submissions of held jobs in the pure core of the controller."""

from __future__ import annotations

import math

import pytest

from presage.errors import InvalidJobError, InvalidRequestError, UnknownJobError
from presage.schedulers.core.job import Job
from presage.schedulers.live.controller.explanations.explain import queue_position
from presage.schedulers.live.controller.journal.records import HalfLifeChanged, record_from_json
from presage.schedulers.live.controller.operations.job_changes import hold_jobs, requeue_jobs
from presage.schedulers.live.controller.operations.quotas import quota_records, quotas_response
from presage.schedulers.live.controller.replayed_state import ReplayedState, Stage
from presage.schedulers.live.controller.status_messages import job_status
from presage.schedulers.live.controller.what_if.live_snapshot import copy_state
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.what_if.answer import Verdict
from presage.schedulers.what_if.what_if import what_if
from presage.serving.authentication.callers import Caller
from tests.schedulers.live.controller.test_core import V100, FakeForecaster, ended, task
from tests.schedulers.live.operations.test_core import Operated

FOUR = (V100,) * 4


class Shared(Operated):
    """World in which each user submits jobs; replays have the same quotas and use."""

    def __init__(self, policy="best-fit"):
        super().__init__(policy_of(policy))
        self.report("a", FOUR)

    def submits(self, user, *names, **values):
        fields = {key: values.pop(key) for key in ("hold", "array", "array_limit") if key in values}
        jobs = [
            SubmittedJob(Job(name, 0.0, user=user, **values), ("run",), grace_s=5.0, **fields)
            for name in names
        ]
        return self.send(*jobs, caller=Caller(user, frozenset({"submit"})))

    def quota(self, user, *, remove=False, **numbers):
        request = pb.SetQuotaRequest(quota=pb.Quota(user=user, **numbers), remove=remove)
        return self.write(quota_records(self.core.state.users, request, self.now_s))

    def placed(self):
        """Decide, and return the jobs that are on the node, which reports them as running."""
        self.decide()
        jobs = self.core.state.jobs.values()
        return sorted(job.job_id for job in jobs if job.stage in (Stage.PLACED, Stage.RUNNING))

    def after(self, seconds):
        self.now_s += seconds
        self.report("a", FOUR)
        return self

    def finish(self, name, attempt=1, **how):
        self.end(name, attempt, **how)
        return self

    def end(self, name, attempt=1, **how):
        return self.report("a", FOUR, tasks=[ended(name, attempt, **(how or {"finished": True}))])

    def write(self, records):
        names = super().write(records)
        kept = {key: row for key, row in self.snapshot.items() if row is not None}
        assert ReplayedState.from_rows(kept).users == self.core.state.users
        assert self.begin().state.users == self.core.state.users
        return names

    def held(self, user):
        return self.core.state.users.use.held_milli(user) / 1000

    def used_s(self, user):
        return self.core.state.users.use.at(user, self.now_s)


def test_a_job_above_the_quota_waits_with_the_reason_and_others_pass():
    world = Shared("fifo")
    world.quota("ana", devices=2)
    world.submits("ana", "a1", "a2", "a3")
    world.submits("bob", "b1")
    assert world.placed() == ["a1", "a2", "b1"]
    assert world.why("a3") == "it waits: user ana holds 2 of 2 devices of the quota"
    status = job_status(world.core, world.core.state.jobs["a3"], world.now_s)
    assert status.reason == "user ana holds 2 of 2 devices of the quota"
    assert queue_position(world.core.current_view, "a3") == 0

    world.finish("a1")
    assert world.placed() == ["a2", "a3", "b1"]


def test_a_gang_counts_with_all_of_its_devices_and_waits_for_what_earlier_jobs_need():
    world = Shared()
    world.quota("ana", devices=3)
    world.submits("ana", "gang", gpus=2)
    world.submits("ana", "wide", gpus=2)
    world.submits("ana", "small")
    assert world.placed() == ["gang", "small"]
    assert world.why("wide") == "it waits: user ana holds 3 of 3 devices of the quota"
    world.finish("small")
    assert world.why("wide").startswith("it waits: user ana holds 2 of 3 devices of the quota")
    assert "and it needs 2" in world.why("wide")


def test_a_job_that_needs_more_than_the_quota_is_refused_and_says_how_to_fix_it():
    world = Shared()
    world.quota("", devices=2)
    with pytest.raises(InvalidJobError, match="needs 3 devices at once, and the quota of user 'an"):
        world.submits("ana", "large", gpus=3)
    world.quota("ana", devices=3)
    world.submits("ana", "large", gpus=3)
    world.submits("", "of-no-user", gpus=3)
    assert world.placed() == ["large"]
    world.quota("ana", devices=1)  # what runs goes on; what waits has a reason
    world.submits("ana", "next")
    assert world.placed() == ["large"]
    assert world.why("next") == "it waits: user ana holds 3 of 1 device of the quota"
    world.finish("large")
    assert world.placed() == ["next", "of-no-user"]


def test_a_job_that_leaves_its_node_counts_until_its_node_has_ended_it():
    world = Shared()
    world.quota("ana", devices=1)
    world.submits("ana", "first")
    assert world.placed() == ["first"]
    world.report("a", FOUR, tasks=[pb.Task(job_id="first", attempt=1, ran_s=1.0)])
    world.submits("ana", "second", priority=1)
    ana = Caller("ana", frozenset({"submit"}))
    world.write(requeue_jobs(world.core.state, ["first"], world.now_s, ana))
    assert world.placed() == []
    assert world.held("ana") == 1
    assert world.why("second") == "it waits: user ana holds 1 of 1 device of the quota"
    world.finish("first", requested=True)
    assert world.held("ana") == 0
    assert world.placed() == ["second"]


def test_an_array_and_its_limit_count_within_the_quota():
    world = Shared()
    world.quota("ana", devices=2)
    world.submits("ana", "s-0", "s-1", "s-2", array="s", array_limit=3)
    assert world.placed() == ["s-0", "s-1"]
    world.quota("ana", remove=True)
    assert world.placed() == ["s-0", "s-1", "s-2"]


def test_quotas_and_use_survive_a_restart_and_are_neither_lost_nor_doubled():
    world = Shared("fifo:fair_share_s=100")
    world.write([HalfLifeChanged(100.0, 0.0)])
    world.quota("ana", devices=2, weight=2.0)
    world.submits("ana", "a1", "a2")
    world.placed()
    for _ in range(3):
        world.after(50.0)
        world.core = world.begin()  # the controller was killed
        world.report("a", FOUR)
    expected = 2 * 100 / math.log(2) * (1 - 2**-1.5)
    assert world.used_s("ana") == pytest.approx(expected, rel=1e-12)
    world.finish("a1")
    world.finish("a2")
    world.after(100.0)
    assert world.used_s("ana") == pytest.approx(expected / 2, rel=1e-12)
    found = quotas_response(world.core.state.users, world.now_s, is_fair=True)
    (row,) = found.users
    assert (row.quota.user, row.quota.devices, row.quota.weight) == ("ana", 2.0, 2.0)
    assert (row.held_devices, found.half_life_s) == (0.0, 100.0)
    assert not found.default_quota.HasField("devices")


def test_users_with_less_past_use_per_weight_go_first_and_priority_precedes():
    world = Shared("fifo:fair_share_s=1000")
    world.write([HalfLifeChanged(1000.0, 0.0)])
    world.submits("ana", "a1", gpus=3)
    world.submits("bob", "b1")
    world.placed()
    world.after(100.0)
    world.submits("ana", "a2", gpus=4)
    world.submits("bob", "b2", gpus=4)
    world.submits("ana", "a3", gpus=4, priority=1)
    world.submits("cyd", "c1", gpus=4)
    world.placed()
    order = ["a3", "c1", "b2", "a2"]
    view = world.core.current_view
    assert [queue_position(view, name) for name in order] == [1, 2, 3, 4]
    world.quota("ana", weight=4.0)  # 300 / 4 is less than 100
    view = world.core.view(world.now_s)
    assert [queue_position(view, name) for name in ("a3", "c1", "a2", "b2")] == [1, 2, 3, 4]


def test_a_job_that_is_submitted_held_starts_once_it_is_released():
    world = Shared()
    world.submits("ana", "job", hold=True)
    assert world.placed() == []
    assert world.why("job") == "it waits: it is held by ana"
    world.core = world.begin()
    world.report("a", FOUR)
    assert world.placed() == []
    ana = Caller("ana", frozenset({"submit"}))
    world.write(hold_jobs(world.core.state, ["job"], world.now_s, ana, release=True))
    assert world.placed() == ["job"]


def test_what_if_simulations_have_the_quotas_and_the_use():
    world = Shared("fifo:fair_share_s=1000")
    world.quota("ana", devices=1)
    world.submits("ana", "a1", "a2")
    world.placed()
    copied = copy_state(world.core, world.now_s)
    assert copied is not None
    snapshot = copied.snapshot()
    assert [*snapshot.pending] == ["a2"]
    assert snapshot.quotas.devices_milli("ana") == 1000
    assert snapshot.use == world.core.state.users.use


def test_what_if_answers_respect_quotas():
    world = Shared()
    world.quota("ana", devices=1)
    world.submits("ana", "a1", "a2", model="500")
    world.placed()
    world.report("a", FOUR, tasks=[task("a1", ran_s=1.0)])
    world.core.view(world.now_s)
    large = Job("large", 0.0, gpus=2, user="ana", model="500")
    copied = copy_state(world.core, world.now_s)
    assert copied is not None
    waits, impossible = what_if(
        copied.snapshot(), ["a2", large], policy="best-fit",
        forecaster=FakeForecaster(), samples=2,
    )  # fmt: skip
    assert waits.verdict is Verdict.PREDICTED
    assert waits.start is not None
    assert waits.start.quantile_s(0.5) > 50  # though three devices are idle
    assert impossible.verdict is Verdict.IMPOSSIBLE
    assert "the quota of user 'ana' is 1 device" in impossible.why


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"devices": -1.0}, "must be within 0 and"),
        ({"devices": math.nan}, "must be within 0 and"),
        ({"devices": 1e9}, "must be within 0 and"),
        ({"devices": math.inf}, "must be within 0 and"),
        ({"weight": 0.0}, "weight 0: must be within"),
        ({"weight": math.nan}, "must be within"),
        ({}, "without numbers"),
    ],
)
def test_wrong_numbers_of_a_quota_are_refused(numbers, message):
    world = Shared()
    with pytest.raises(InvalidRequestError, match=message):
        world.quota("ana", **numbers)
    assert world.core.state.users.quotas.of_user == {}


def test_odd_and_unknown_users_are_refused_or_suggested():
    world = Shared()
    for user in ("a\nb", "x" * 129, "a\x1b[0m"):
        with pytest.raises(InvalidRequestError, match="printable"):
            world.quota(user, devices=1.0)
    odd = "Ana Ö; rm -rf 'x' use quota "
    assert world.quota(odd, devices=1.0) == ["QuotaChanged"]
    assert world.quota(odd, devices=1.0) == []
    world.submits(odd, "j1", "j2")
    assert world.placed() == ["j1"]
    with pytest.raises(UnknownJobError, match="user 'Anna' has no quota"):
        world.quota("Anna", remove=True)
    with pytest.raises(UnknownJobError, match="there is no default quota"):
        world.quota("", remove=True)
    assert world.quota(odd, remove=True) == ["QuotaChanged"]
    assert world.placed() == ["j1", "j2"]


def test_a_snapshot_of_an_earlier_version_has_no_quotas_and_no_use_so_far():
    world = Shared()
    world.submits("ana", "a1")
    world.after(10.0)
    world.placed()
    rows = {
        key: row
        for key, row in world.snapshot.items()
        if row is not None and not key.startswith(("use ", "quota ", "half-life"))
    }
    state = ReplayedState.from_rows(rows)
    assert state.users.quotas.of_user == {}
    assert state.users.use.held_milli("ana") == 1000
    assert state.users.use.at("ana", state.now_s) == 0.0
    row = {"type": "Submitted", "job_id": "old", "job": {"job_id": "old", "command": ["x"]},
           "time_s": 1.0, "time_unix_s": 1.0}  # fmt: skip
    state.apply(record_from_json(row))
    assert not state.jobs["old"].held
