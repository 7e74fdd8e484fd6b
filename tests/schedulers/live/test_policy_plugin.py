"""Test of a live cluster with a policy from outside of the package."""

from __future__ import annotations

import signal

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import PRESAGE
from tests.schedulers.plain_policy import PLAIN


def test_a_policy_of_the_current_folder_schedules_a_live_cluster(cluster, monkeypatch):
    (cluster.folder / "shortest_fitting.py").write_text(PLAIN)
    monkeypatch.chdir(cluster.folder)
    cluster.start(
        "up",
        (*PRESAGE, "up", "--port", cluster.port, "--state", cluster.folder / "up", "--lease-s", 30,
         "--policy", "shortest_fitting:ShortestFitting:depth=50"),
    )  # fmt: skip
    cluster.connected("n0")
    cluster.submit(cluster.job("first", 40, 0.05))
    cluster.runs("first")
    cluster.submit(cluster.job("other", 5), cluster.job("last", 5))
    cluster.submit(cluster.job("urgent", 5, latency_sensitive=True))

    over = cluster.over("first", "other", "last", "urgent")
    assert set(over.values()) == {pb.FINISHED}
    started = [line.job for line in cluster.lines() if line.what == "start"]
    assert started[:2] == ["first", "urgent"]
    cluster.check(run_once=["first", "urgent", "other", "last"])
    assert cluster.kill("up", signal.SIGTERM) == 0
    assert "Traceback" not in cluster.log("up").read_text()
