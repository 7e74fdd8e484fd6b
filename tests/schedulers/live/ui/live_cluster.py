"""Live cluster for tests of the page."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from presage.errors import ServiceError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.support.waiting import wait_until

LEASE_S = 120.0  # longer than the tests: jobs outlive the controller


class Cluster:
    """Controller and agents with one device each, as processes."""

    def __init__(self, folder, *, agents, kind="cpu-1", memory_gib=1, forecast="none"):
        self._forecast = forecast
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.target, self._folder = f"127.0.0.1:{self.port}", folder
        self.client = ClusterClient(self.target)
        self.start_controller()
        cpu = min(os.sched_getaffinity(0))
        self._agents = [
            self._process(
                f"n{i}", "agent", "--node", f"n{i}", "--controller", self.target, "--device",
                f"{kind}={cpu}", "--memory-gib", str(memory_gib), "--state",
                str(folder / f"n{i}"), "--heartbeat-s", "0.5", "--predictor", str(forecast),
                *(["--allow-root-jobs"] if os.geteuid() == 0 else []),
            )
            for i in range(agents)
        ]  # fmt: skip
        self.until(lambda: sum(one.connected for one in self.client.list().nodes) == agents)

    def start_controller(self):
        self._controller = self._process(
            "controller", "controller", "--journal", str(self._folder / "controller.db"),
            "--port", str(self.port), "--lease-s", str(LEASE_S), "--predictor", str(self._forecast),
        )  # fmt: skip

    def kill_controller(self):
        self._controller.kill()
        self._controller.wait()

    def run(self, name, *command, **fields):
        job = pb.Job(job_id=name, command=command, gpus=1, grace_s=0.2, **fields)
        self.client.submit([job])

    def until(self, condition):
        wait_until(condition, retried=ServiceError)

    def close(self):
        with suppress(ServiceError):
            self.client.cancel([row.job.job_id for row in self.client.list().jobs])
            self.until(lambda: not self.client.list().jobs)
        self.client.close()
        for process in (*self._agents, self._controller):
            process.send_signal(signal.SIGTERM)
        for process in (*self._agents, self._controller):
            process.wait(30)

    def _process(self, name, *words):
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "presage", "cluster", *words], stdout=log, stderr=log
            )
