"""Tests of elastic jobs whose scripts fail or are not elastic, and of rejected submissions."""

from __future__ import annotations

import sys
import time

import pytest

from presage.errors import InvalidJobError
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import LiveCluster, until
from tests.schedulers.live.elastic.elastic_cluster import ElasticCluster
from tests.support.slow_tests import all_faults
from tests.support.waiting import stays_true


def test_a_script_that_fails_on_one_node_continues_on_others(elastic):
    elastic.up("n0", "n1")
    (elastic.folder / "n1" / "bad").touch()
    elastic.submit(elastic.elastic("wide", 20, (1, 3, 3), "fails:bad"))
    bad = 1 if len(_on(elastic, "n1")) == 1 else 2

    elastic.trains("wide", 3 - bad)
    # It does not grow yet.
    assert stays_true(lambda: len(elastic.status("wide").members) == 3 - bad, 3.0, pause_s=0.2)
    elastic.advances("wide")
    assert len(elastic.status("wide").members) == 3 - bad
    assert elastic.ends("wide") == 0
    assert "ended with status 3" in elastic.client.explain("wide").status.sizes[1].reason


@pytest.fixture(scope="module")
def rejecting(tmp_path_factory):
    cluster = ElasticCluster(tmp_path_factory.mktemp("rejecting"))
    cluster.controller()
    until(lambda: [cluster.all()])
    yield cluster
    cluster.close()


def _on(elastic, node: str) -> list[str]:
    members = until(lambda: elastic.status("wide").members)
    return [one.name for one in members if one.node == node]


@all_faults
def test_growth_waits_longer_after_each_failure(elastic):
    elastic.up("n0")
    elastic.submit(elastic.elastic("wide", 100, (1, 3, 3), "fails:bad"))
    elastic.trains("wide", 2)
    (elastic.folder / "n1").mkdir()
    (elastic.folder / "n1" / "bad").touch()
    elastic.agent("n1")
    began_s = time.monotonic()

    until(lambda: elastic.sizes("wide")[1:] == [3, 2, 3, 2])

    assert time.monotonic() - began_s > 9  # a first delay of 10 s, the next one is 20 s
    assert stays_true(lambda: len(elastic.sizes("wide")) == 5, 15, pause_s=0.2)
    elastic.advances("wide")
    assert elastic.ends("wide") == 0


@all_faults
def test_a_script_that_fails_everywhere_fails_the_job(elastic):
    elastic.up("n0", "n1")
    for node in ("n0", "n1"):
        (elastic.folder / node / "bad").touch()
    elastic.submit(elastic.elastic("wide", 20, (1, 3, 3), "fails:bad"))

    assert elastic.over("wide") == {"wide": pb.FAILED}
    assert "ended with status 3" in elastic.status("wide").reason
    elastic.is_gone()


@all_faults
@pytest.mark.parametrize(("status", "phase"), [(0, pb.FINISHED), (3, pb.FAILED)])
def test_a_script_that_is_not_elastic_ends_in_a_clear_state(elastic, status, phase):
    elastic.up("n0")
    job = elastic.elastic("plain", 1, (1, 2, 2))
    job.command[:] = [sys.executable, "-c", f"import sys, time; time.sleep(2); sys.exit({status})"]
    elastic.submit(job)

    assert elastic.over("plain") == {"plain": phase}
    elastic.is_gone()


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("low", (3, 2, 4), "min_gpus"),
        ("high", (1, 4, 2), "max_gpus"),
        ("many", (1, 2, 65), "max_gpus=65, must be <= 64"),
        ("negative", (-1, 2, 2), "min_gpus"),
        ("a/m1", (1, 2, 2), "workers of elastic jobs"),
        ("x" * 121, (1, 2, 2), "at most 120 characters"),
    ],
)
def test_invalid_sizes_and_names_are_rejected(rejecting, name, sizes, message):
    with pytest.raises(InvalidJobError, match=message):
        rejecting.client.submit([rejecting.elastic(name, 1, sizes)])
    assert not rejecting.all().jobs


@all_faults
def test_a_job_larger_than_the_cluster_waits_with_a_reason(elastic):
    elastic.controller()
    LiveCluster.agent(elastic, "n0")  # with one device
    elastic.connected("n0")
    elastic.submit(elastic.elastic("wide", 20, (2, 2, 3)))

    until(
        lambda: (
            "needs 2 devices, and the cluster has 1 for it"
            in elastic.client.explain("wide").summary
        )
    )
    assert elastic.status("wide").phase == pb.WAITING
    elastic.agent("n1")
    elastic.trains("wide", 3)
    assert elastic.ends("wide") == 0


@all_faults
@pytest.mark.parametrize("name", ["two words/and a slash", "ü.1", "-x", "y" * 120])
def test_job_ids_that_are_invalid_file_names_work(elastic, name):
    elastic.up("n0")
    elastic.submit(elastic.elastic(name, 30, (1, 2, 2)))
    until(lambda: len(elastic.workers(name)) == 2)
    assert elastic.ends(name) == 0
