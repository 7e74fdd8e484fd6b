"""A network partition between two workers in the middle of training, in network namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from presage.training.job_folder import JobFolder
from presage.training.leader.job_config import JobConfig
from presage.training.local_job import prepare
from tests.support.slow_tests import all_faults
from tests.training.support.job import ROOT, Job
from tests.training.support.laws import check_equals_uninterrupted, check_exactly_once, sizes

GATES = {"4": "g1"}
LEADER = "10.99.0.1"


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


pytestmark = all_faults


@pytest.fixture
def network() -> Iterator[str]:
    """Three namespaces: a router, in which the leader listens, and two workers behind it."""
    if os.geteuid():
        pytest.skip("network namespaces need root")
    prefix = f"presage{os.getpid()}"
    router, names = f"{prefix}r", [f"{prefix}a", f"{prefix}b"]
    try:
        try:
            for name in (router, *names):
                run("ip", "netns", "add", name)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces: {error}")
        run("ip", "-n", router, "link", "set", "lo", "up")
        run("ip", "-n", router, "address", "add", f"{LEADER}/32", "dev", "lo")
        for i, name in enumerate(names, 1):
            run(
                "ip",
                "-n",
                router,
                "link",
                "add",
                f"v{i}",
                "type",
                "veth",
                "peer",
                "e",
                "netns",
                name,
            )
            run("ip", "-n", router, "address", "add", f"10.99.{i}.1/24", "dev", f"v{i}")
            run("ip", "-n", router, "link", "set", f"v{i}", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "address", "add", f"10.99.{i}.2/24", "dev", "e")
            run("ip", "-n", name, "link", "set", "e", "up")
            run("ip", "-n", name, "route", "add", "default", "via", f"10.99.{i}.1")
        forward(prefix, is_on=True)
        yield prefix
    finally:
        for name in (router, *names):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def forward(prefix: str, *, is_on: bool) -> None:
    """Let the router forward packets between the workers, or drop them."""
    setting = f"net.ipv4.ip_forward={int(is_on)}"
    run("ip", "netns", "exec", f"{prefix}r", "sysctl", "-w", setting)


class NamespaceJob(Job):
    """Job whose leader and workers run in network namespaces."""

    def __init__(self, state, prefix: str, **settings) -> None:
        self.state, self.folder = state, JobFolder(state, "job")
        self.leader_folder = self.folder
        prepare(self.folder, JobConfig(host=LEADER, **settings))
        module = [sys.executable, "-m", "presage.training.leader", "--job", "job", "--state"]
        self.prefix = prefix
        self.leader = self._spawn("r", [*module, str(state)])
        self.workers = {}
        self.processes = [self.leader]

    def _spawn(self, namespace: str, command: list[str]) -> subprocess.Popen[bytes]:
        words = ["ip", "netns", "exec", f"{self.prefix}{namespace}", *command]
        with (self.folder.path / "leader.log").open("ab") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, cwd=ROOT)

    def start(self, *names: str, **options) -> None:
        for name in names:
            arguments = (str(self.state), "job", name, {"state": str(self.state), **options})
            code = "from tests.training.support.worker_process import run_worker; "
            code += f"run_worker{arguments!r}"
            self.workers[name] = self._spawn(name, [sys.executable, "-c", code])
            self.processes.append(self.workers[name])

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def test_workers_that_are_cut_off_from_each_other_do_not_hang(tmp_path, network):
    """The kernel ends their connection; the later one is removed, and the other one continues."""
    job = NamespaceJob(tmp_path, network, workers=2, silence_s=60.0)
    try:
        job.start("a", "b", gates=GATES, peer_timeout_s=3)
        job.wait_at("g1")
        forward(network, is_on=False)
        job.open("g1")
        assert job.leader.wait(120) == 0, job.log()
        for process in job.workers.values():
            process.wait(30)

        assert "cannot connect to" in job.log()
        assert [("error" in one) for one in job.results().values()].count(True) == 1
        assert sizes(job)[-1] == 1
        check_exactly_once(job)
        check_equals_uninterrupted(job)
    finally:
        job.close()
