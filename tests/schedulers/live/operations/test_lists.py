"""Lists of the jobs and nodes of a live cluster: age, time left, user, filters and reasons."""

from __future__ import annotations

import json

import pytest

from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.local_token import account
from tests.schedulers.live.cluster import until

pytestmark = pytest.mark.timeout(240)


def test_jobs_are_listed_by_user_state_and_node_in_80_columns(cluster, ok, refused):
    cluster.up("n0")
    cluster.submit(cluster.job("long", 10_000))
    cluster.runs("long")
    cluster.submit(cluster.job("next", 10_000))

    until(lambda: cluster.status("long").phase == pb.RUNNING and cluster.status("long").done > 0)
    lines = ok("ps", COLUMNS="80").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["job", "user", "state", "node", "share", "done", "age", "left"]
    name, user, state, node, *_, age, left = lines[2].split()
    assert (name, user, state, node) == ("long", account(), "running", "n0")
    assert age.endswith("s")
    assert left != "-"
    assert ok("ps", "-o", "name").split() == ["long", "next"]
    assert ok("ps", "-o", "name", "--state", "waiting").split() == ["next"]
    assert ok("ps", "-o", "name", "--node", "n0").split() == ["long"]
    assert ok("ps", "-o", "name", "--user", "another") == ""
    for words in (["-o", "json"], ["--json"]):
        assert [row["job"]["job_id"] for row in json.loads(ok("ps", *words))] == ["long", "next"]
    assert "best effort" in ok("ps", "-o", "wide", COLUMNS="80")
    assert "'runing' is no state of jobs; did you mean 'running'?" in refused(
        "ps", "--state", "runing"
    )
    assert "there is no node 'n1'; known are n0" in refused("ps", "--nodes", "--node", "n1")
    assert "exclude each other" in refused("ps", "--nodes", "--user", "ann")

    cluster.cancel("long", "next")
    cluster.over("long", "next")
    assert ok("ps", "-o", "name") == ""
    assert set(ok("ps", "-o", "name", "--state", "cancelled").split()) == {"long", "next"}


def test_a_drained_node_has_its_operator_and_reason_also_after_a_kill_of_the_controller(
    cluster, ok, refused
):
    cluster.up("n0", "n1")
    ok("drain", "n0", "--reason", "new fan: bay 3")
    ok("drain", "n1/0", "--reason", "ECC errors")
    by = f"it is drained by {account()}"
    why = f"{by}: new fan: bay 3"
    expected = {"n0": ("drained", why, ""), "n1": ("ready", "", f"{by}: ECC errors")}

    def listed():
        nodes = json.loads(ok("ps", "--nodes", "-o", "json"))
        return {n["name"]: (n["state"], n["reason"], n["devices"][0]["reason"]) for n in nodes}

    assert listed() == expected
    assert why in ok("ps", "--nodes", "--node", "n0")
    assert "n1" not in ok("ps", "--nodes", "--node", "n0")
    assert set(ok("ps", "--nodes", "-o", "name").split()) == {"n0", "n1"}
    assert "--reason and --undo exclude" in refused("drain", "n0", "--undo", "--reason", "x")

    cluster.kill("controller")
    cluster.controller()
    until(lambda: all(node.connected for node in cluster.all().nodes))
    assert listed() == expected

    ok("drain", "n0", "--undo")
    assert listed()["n0"] == ("ready", "", "")
    cluster.kill("n0")
    (silent,) = until(
        lambda: [node for node in cluster.all().nodes if node.state == "silent"], 40.0
    )
    assert silent.reason.startswith("its agent has been silent for ")
    assert silent.name == "n0"
    assert not [row for row in cluster.all().jobs if row.phase == pb.RUNNING]
