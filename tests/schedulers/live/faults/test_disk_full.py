"""Tests of full disks, of the controller's journal and of an agent's state."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from presage.errors import ServiceError
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import LiveCluster, until
from tests.support.slow_tests import all_faults
from tests.support.waiting import stays_true

LEASE_S = 4.0


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a small file system."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets us mount no file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill the disk completely."""
    filling = folder / "filling"
    with filling.open("ab", buffering=0) as file:
        for _ in range(20):  # also takes space that other processes free meanwhile
            with suppress(OSError):
                while True:
                    file.write(b"x" * 512)
            time.sleep(0.05)
    try:
        yield
    finally:
        filling.unlink()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path, lease_s=LEASE_S)
    yield cluster
    cluster.close()


@all_faults
def test_with_a_full_journal_disk_jobs_continue_and_new_ones_are_rejected(cluster):
    folder = cluster.folder / "journal"
    with small_disk(folder, "1m"):
        cluster.up("n0", "n1")
        cluster.submit(cluster.job("long", 220, 0.05), cluster.job("short", 30, 0.05))
        cluster.runs("long")
        cluster.runs("short")
        with full(folder):
            with pytest.raises(ServiceError, match="free space on its disk") as refused:
                while True:  # there may be room for some
                    refused_or_taken(cluster, f"more-{time.time()}")
            assert "\n" not in str(refused.value)
            until(lambda: [line for line in cluster.lines() if line.what == "end"])
            time.sleep(1.5 * LEASE_S)
            beyond = max(line.number for line in cluster.lines() if line.what == "did")
            cluster.runs("long", beyond=beyond)
        cluster.submit(cluster.job("after", 5))

        assert set(cluster.over(*cluster.acknowledged).values()) == {pb.FINISHED}
        cluster.check(run_once=sorted(cluster.acknowledged))
        cluster.kill("controller")
        cluster.controller()
        assert until(cluster.phases).keys() >= cluster.acknowledged
        cluster.kill("controller")
        cluster.kill("n0")
        cluster.kill("n1")


def refused_or_taken(cluster: LiveCluster, name: str) -> None:
    cluster.client.submit([cluster.job(name, 1)])
    cluster.acknowledged.add(name)


@all_faults
def test_with_a_full_node_disk_jobs_continue_and_new_ones_wait(cluster):
    folder = cluster.folder / "n0"
    with small_disk(folder, "1m"):
        cluster.up("n0")
        cluster.submit(cluster.job("long", 220, 0.05, 10))
        first = cluster.runs("long", beyond=20)
        with full(folder):
            time.sleep(2 * LEASE_S)
            assert cluster.runs("long", beyond=120).pid == first.pid
            cluster.cancel("long")  # the shim cannot be notified
            cluster.submit(cluster.job("next", 5))
            assert stays_true(lambda: not cluster.starts("next"), 0.5 * LEASE_S, pause_s=0.2)

        assert cluster.over("long", "next")["next"] == pb.FINISHED
        cluster.check(run_once=["long", "next"])
        cluster.kill("n0")


@all_faults
def test_a_job_that_needs_more_disk_space_than_free_does_not_fail(cluster):
    large = cluster.job("large", 5)
    large.environment.update({f"VARIABLE_{number}": "x" * 1000 for number in range(600)})
    with small_disk(cluster.folder / "n0", "1m"):  # written twice: as a job and for its shim
        cluster.up("n0")
        cluster.submit(large)
        until(lambda: any("can start no job" in node.reason for node in cluster.all().nodes))
        until(lambda: cluster.status("large").phase == pb.WAITING)
        cluster.agent("n1")

        assert cluster.over("large") == {"large": pb.FINISHED}
        assert cluster.status("large").node == "n1"
        cluster.check(run_once=["large"])
        cluster.kill("n0")


@all_faults
def test_a_job_moves_from_a_node_with_a_full_disk_until_there_is_space(
    cluster,
):
    folder = cluster.folder / "n0"
    with small_disk(folder, "1m"):
        cluster.up("n0")
        with full(folder):
            cluster.submit(cluster.job("first", 5))
            until(lambda: any("can start no job" in node.reason for node in cluster.all().nodes))
            until(lambda: cluster.status("first").phase == pb.WAITING)
            cluster.agent("n1")
            assert cluster.over("first") == {"first": pb.FINISHED}
            assert cluster.status("first").node == "n1"
            cluster.drain("n1")
        cluster.submit(cluster.job("second", 5))
        assert cluster.over("second")["second"] == pb.FINISHED
        assert cluster.status("second").node == "n0"
        cluster.check(run_once=["first", "second"])
        cluster.kill("n0")
