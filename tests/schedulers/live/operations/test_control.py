"""Commands that control jobs of a live cluster, whose controller is killed in between."""

from __future__ import annotations

import itertools
import json
import sys

import pytest

from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.local_token import account
from tests.schedulers.live.cluster import until

pytestmark = pytest.mark.timeout(300)


def restart(cluster):
    cluster.kill("controller")
    cluster.controller()
    until(lambda: all(node.connected for node in cluster.all().nodes) and cluster.all().nodes)


def test_a_job_is_held_requeued_with_its_state_and_released(cluster, ok, refused):
    cluster.up("n0")
    cluster.submit(cluster.job("first", 2_000, 0.05))
    cluster.submit(cluster.job("low", 3), cluster.job("high", 3))
    cluster.runs("first", beyond=3)
    until(lambda: cluster.status("first").phase == pb.RUNNING)
    assert "job 'low' is in the queue already" in refused("requeue", "low")
    ok("priority", "high", "5")
    ok("priority", "low", "-5")
    ok("hold", "first")
    restart(cluster)

    assert ok("ps", "-o", "name", "--state", "waiting").split() == ["high", "low"]
    assert cluster.status("first").phase == pb.RUNNING
    ok("requeue", "first")
    cluster.over("low", "high")
    rows = {row.job.job_id: row for row in cluster.all().jobs}
    assert rows["high"].started_unix_s < rows["low"].started_unix_s
    assert ok("ps", "-o", "name", "--state", "held").split() == ["first"]
    assert f"it waits: it is held by {account()}" in ok("explain", "first")
    assert "held" in ok("ps", "first")
    short = ok("explain", "--short", "first")
    assert short == f"first: it waits: it is held by {account()}.\n"
    when = ok("when", "first", "--samples", "3")
    assert f"first: start unknown, because it is held by {account()}." in when
    assert "no start of 1 job that waits for more than devices" in when
    assert ok("top", "--once").startswith("0 jobs on nodes, 1 waiting")

    restart(cluster)
    assert cluster.status("first").held
    ok("release", "first")
    second = cluster.runs("first", 2)
    assert second.number > 3  # from its checkpoint
    types = [event["type"] for event in cluster_events(ok, "first")]
    assert types[:2] == ["Submitted", "Placed"]
    assert types.count("Held") == 2
    assert "job 'low' is finished" in refused("hold", "low")
    assert "no job 'missing'" in refused("release", "missing")
    assert ok("cancel", "--user", account()).split() == ["first"]
    assert "no job of 'bob' is left" in refused("cancel", "--user", "bob")
    cluster.over("first")
    assert "nothing was cancelled: no job is left" in refused("cancel", "--all")
    assert "exactly one" in refused("cancel")
    assert "exactly one" in refused("cancel", "first", "--all")


def cluster_events(ok, job):
    return json.loads(ok("explain", job, "--json"))["history"]


def test_dependencies_limits_and_arrays_hold_over_a_kill_of_the_controller(cluster, ok, refused):
    cluster.up("n0", "n1")
    python = ["--", sys.executable, "-c"]
    ok("submit", "--name", "long", "--time-limit", "4s", "--grace-s", "1", *python,
       "import time; time.sleep(600)")  # fmt: skip
    ok("submit", "--name", "never", "--after", "long", *python, "pass")
    ok("submit", "--name", "cleanup", "--after-any", "long", "--after-any", "never", *python,
       "print('clean')")  # fmt: skip
    out = ok("submit", "--name", "s", "--array", "0-4:2%1", *python,
             "import os; print(os.environ['PRESAGE_ARRAY_INDEX'])")  # fmt: skip
    assert out.split() == ["s-0", "s-2", "s-4"]
    restart(cluster)
    phases = cluster.over("long", "never", "cleanup", "s-0", "s-2", "s-4")
    assert phases["long"] == pb.TIMED_OUT
    assert phases["never"] == pb.CANCELLED
    assert {phases[name] for name in ("cleanup", "s-0", "s-2", "s-4")} == {pb.FINISHED}
    assert cluster.status("long").reason == "it ran longer than its time limit of 4 s"
    assert cluster.status("never").reason == "job 'long', after which it runs, is timed-out"
    assert ok("logs", "s-4") == "4\n"
    spans = sorted(
        (row.started_unix_s, row.ended_unix_s) for row in cluster.all().jobs if row.job.array == "s"
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert ok("ps", "-o", "name", "--state", "timed-out").split() == ["long"]
    done = ok("ps", "--all", COLUMNS="80")
    assert max(map(len, done.splitlines())) <= 80

    assert "there is no job 'none' after which" in refused(
        "submit", "--after", "none", "--", "true"
    )
    assert "job 'long', after which it runs, is timed-out" in refused(
        "submit", "--after", "long", "--", "true"
    )
    assert "must be indices such as 0-9" in refused("submit", "--array", "a", "--", "true")
    assert "is not a duration" in refused("submit", "--time-limit", "2 hours", "--", "true")
    assert "--time-limit 0" in refused("submit", "--time-limit", "0", "--", "true")


def test_a_name_that_looks_like_an_option_is_a_name_in_the_documented_pipe(cluster, ok):
    cluster.up("n0")
    cluster.submit(*(cluster.job(name, 2_000) for name in ("--all", "other", "own other")))
    names = ok("ps", "-o", "name").splitlines()
    assert ok("cancel", "--", *(name for name in names if name != "other")) == ""
    cluster.over("--all", "own other")
    assert ok("ps", "-o", "name") == "other\n"


def test_an_array_that_is_submitted_again_with_more_indices_starts_the_new_ones(cluster, ok, run):
    cluster.up("n0")
    words = ("--", sys.executable, "-c", "pass")
    ok("submit", "--name", "s", "--array", "0,1", *words)
    cluster.over("s-0", "s-1")
    done = run("submit", "--name", "s", "--array", "0-2", *words)
    assert (done.returncode, done.stdout) == (1, "s-2\n")
    assert "job 's-0' was submitted before, and is finished: it was not started" in done.stderr
    done = run("submit", "--name", "s", "--array", "0-2", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no new job was started" in done.stderr


def test_quotas_and_holds_of_submissions_survive_a_kill_of_the_controller(cluster, ok, refused):
    cluster.up("n0", "n1")
    mine = account()
    ok("quota", "set", mine, "--devices", "1", "--weight", "2")
    cluster.submit(cluster.job("first", 2_000))
    cluster.runs("first")
    ok("submit", "--name", "second", "--", sys.executable, "-c", "pass")
    ok("submit", "--name", "later", "--hold", "--", sys.executable, "-c", "pass")
    assert "needs 2 devices at once, and the quota of user" in refused(
        "submit", "--gpus", "2", "--", "true"
    )
    restart(cluster)
    why = f"it waits: user {mine} holds 1 of 1 device of the quota"
    until(lambda: ok("explain", "--short", "second") == f"second: {why}.\n")
    assert f"user {mine} holds 1 of 1 device of the quota" in ok("ps", "second")
    (row,) = json.loads(ok("quota", "list", "--json"))["users"]
    assert row["quota"] == {"user": mine, "devices": 1.0, "weight": 2.0}
    assert (row["held_devices"], row["used_device_s"] > 0) == (1.0, True)
    listed = ok("quota", "list", COLUMNS="80")
    assert "without fair share" in listed
    assert max(map(len, listed.splitlines())) <= 80

    cluster.cancel("first")
    cluster.over("first", "second")
    assert cluster.status("later").held
    ok("release", "later")
    cluster.over("later")
    assert "weight 0: must be within" in refused("quota", "set", mine, "--weight", "0")
    assert "exactly one" in refused("quota", "set", "--devices", "1")
    assert "no number" in refused("quota", "set", mine)
    assert "has no quota" in refused("quota", "remove", "missing")
    ok("quota", "remove", mine)
    assert "there is no default quota" in refused("quota", "remove", "--default")
