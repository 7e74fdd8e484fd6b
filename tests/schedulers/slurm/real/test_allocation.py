"""A live cluster inside a Slurm allocation: `examples/slurm/cluster.sbatch` on a real Slurm."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from presage.schedulers.live.agent.tasks.processes import environment, pids
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.client.credentials import Credentials
from tests.schedulers.live.cluster import SOURCE, LiveCluster, until
from tests.schedulers.live.job import processes_of
from tests.schedulers.slurm.site import needs_slurm
from tests.support.slurm.cluster import slurm

pytestmark = [
    needs_slurm,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "examples" / "slurm" / "cluster.sbatch"
LEASE_S = 4.0


class Allocation(LiveCluster):
    """A cluster whose controller and agents are processes of a Slurm allocation."""

    def __init__(self, folder: Path, site, *options: str) -> None:
        super().__init__(folder, lease_s=LEASE_S)
        self.site, self.home = site, folder / "home"
        variables = {
            "PRESAGE_FOLDER": str(self.home),
            "PRESAGE_DEVICES": "cpu-1:1",
            "PRESAGE_PORT": str(self.port),
            "PRESAGE_HOST": "127.0.0.1",
            "PRESAGE_CONTROLLER_OPTIONS": f"--lease-s {LEASE_S}",
            "TMPDIR": str(folder),
            "PATH": f"{commands(folder)}:{os.environ['PATH']}",
            "PYTHONPATH": f"{SOURCE}:{ROOT}",
        }
        agent = ["--device", "cpu-1=0", "--memory-gib", "1", "--heartbeat-s", "0.5"]
        agent += ["--allow-root-jobs"] if os.geteuid() == 0 else []
        words = ["sbatch", "--parsable", f"--output={folder}/slurm.log", "--nodes=2", *options]
        self.job_id = int(site.run(*words, str(SCRIPT), *agent, env=variables))
        until((self.home / "environment").exists, what=self.said)
        token = (self.home / "user.token").read_text().strip()
        self.credentials = Credentials(token, ca=self.home / "cert.pem")
        self.client = ClusterClient(self.target, credentials=self.credentials, timeout_s=20.0)

    def said(self) -> str:
        """Return what the script has printed."""
        path = self.folder / "slurm.log"
        return path.read_text() if path.exists() else "nothing"

    def processes(self, words: str, node: str = "") -> list[int]:
        """Return the processes of this allocation with words in their command line."""
        found = []
        for pid in pids():
            said = environment(pid)
            if said.get(b"SLURM_JOB_ID") != str(self.job_id).encode():
                continue
            if node and said.get(b"SLURMD_NODENAME") != node.encode():
                continue
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                if words.encode() in line:
                    found.append(pid)
        return found

    def kill_all(self, words: str, node: str = "") -> None:
        """Kill these processes."""
        for pid in self.processes(words, node):
            self.signal(pid, signal.SIGKILL)

    def close(self) -> None:
        self.site.try_run("scancel", str(self.job_id))
        super().close()


def commands(folder: Path) -> Path:
    """Return a folder with the command `presage`."""
    place = folder / "bin"
    place.mkdir()
    (place / "presage").write_text(f'#!/bin/sh\nexec {sys.executable} -m presage "$@"\n')
    (place / "presage").chmod(0o755)
    return place


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with slurm(tmp_path_factory.mktemp("slurm"), gpus=0) as running:
        yield running


@pytest.fixture
def allocation(site, tmp_path):
    running = Allocation(tmp_path, site)
    running.connected("n1", "n2")
    yield running
    running.close()


def test_jobs_run_in_an_allocation_and_end_with_it(allocation):
    allocation.submit(allocation.job("short", 5), allocation.job("long", 10_000))
    allocation.runs("short")
    allocation.runs("long")
    assert allocation.over("short")["short"] == pb.FINISHED

    allocation.site.run("scancel", str(allocation.job_id))

    until(lambda: not processes_of(str(allocation.ledger)), 4 * LEASE_S)
    until(lambda: not allocation.processes("-m presage cluster"), 4 * LEASE_S)


def test_agents_and_controller_that_are_killed_start_again_and_jobs_run_once(
    allocation,
):
    allocation.submit(allocation.job("a", 200), allocation.job("b", 200))
    allocation.runs("a")
    allocation.runs("b")
    for words in ("-m presage cluster agent", "-m presage cluster controller"):
        allocation.kill_all(words)
        allocation.connected("n1", "n2")

    assert allocation.over("a", "b") == {"a": pb.FINISHED, "b": pb.FINISHED}
    allocation.check()


def test_jobs_of_a_lost_node_start_on_another_one(allocation):
    allocation.submit(allocation.job("a", 400, 0.05, 10), allocation.job("b", 400, 0.05, 10))
    allocation.runs("a")
    allocation.runs("b")
    lost = "n2"  # the controller is on n1
    allocation.site.kill(lost)
    allocation.kill_all("", lost)
    try:
        allocation.over("a", "b")
        allocation.check()
        assert {node.name for node in allocation.all().nodes if not node.reason} == {"n1"}
    finally:
        allocation.site.start(lost)


def test_the_time_limit_of_the_allocation_ends_all_jobs(site, tmp_path):
    running = Allocation(tmp_path, site, "--time=1")
    try:
        running.connected("n1", "n2")
        running.submit(running.job("long", 100_000))
        running.runs("long")
        site.wait_for(running.job_id, "TIMEOUT", timeout_s=200)
        until(lambda: not processes_of(str(running.ledger)), 4 * LEASE_S)
    finally:
        running.close()


def test_the_script_is_valid_bash():
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
