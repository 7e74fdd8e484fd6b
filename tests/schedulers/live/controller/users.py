"""Controller with tokens, as a process, and its clients and agents."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.protocol.pieces import merge_commands
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.v1 import cluster_pb2_grpc as pb_grpc
from presage.serving.authentication.token_file import add_token
from presage.serving.client.credentials import Credentials
from tests.schedulers.live.cluster import until
from tests.serving.support.processes import free_port

PRESAGE = (sys.executable, "-m", "presage", "cluster")
KIND, GIB = "h100", 2**30
DEVICE = pb.Device(kind=KIND, memory_bytes=80 * GIB)
WITHIN_S = 60.0


class Users:
    """Controller with a token file that has a token for each name.

    Attributes
    ----------
    tokens : dict of str to str
        ann and bob may submit, eve may view, root is an administrator, n0 and n1 are nodes of one
        device each.
    """

    def __init__(
        self,
        folder: Path,
        *options: object,
        with_tokens: bool = True,
        **limits: Mapping[str, str],
    ) -> None:
        self.folder, self.port = folder, free_port()
        self.target = f"127.0.0.1:{self.port}"
        self.journal, self.log = folder / "controller.db", folder / "log"
        file = folder / "tokens"
        self.tokens = {
            name: add_token(file, name, roles, limits.get(name) or more)
            for name, roles, more in (
                ("ann", ["submit"], {"run-as": "anna"}),
                ("bob", ["submit"], {}),
                ("eve", ["view"], {}),
                ("root", ["submit", "admin"], {}),
                ("n0", ["agent"], {"node": "n0", "devices": f"{KIND}:1"}),
                ("n1", ["agent"], {"node": "n1", "devices": f"{KIND}:1"}),
            )
            if with_tokens
        }
        asked = ["--tokens", file] if with_tokens else []
        self._options = [*asked, "--journal", self.journal, *options]
        self.start()

    def start(self) -> None:
        """Start the controller, and wait until it responds."""
        command = [*PRESAGE, "controller", "--port", self.port, *self._options]
        with self.log.open("ab") as said:
            self.process = subprocess.Popen([*map(str, command)], stdout=said, stderr=said)
        until(lambda: self.client("root").list())

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the controller."""
        self.process.send_signal(number)
        self.process.wait(30)

    def client(self, name: str) -> ClusterClient:
        """Return a client with a user's token."""
        credentials = Credentials(self.tokens.get(name, ""))
        return ClusterClient(self.target, credentials=credentials, timeout_s=20.0)

    def job(self, name: str, **more: Any) -> pb.Job:
        """Return a job whose command and environment are secret."""
        secret: dict[str, Any] = {
            "command": ["train", "--key=hunter2"],
            "folder": "/home/ann/secret",
            "gpus": 1,
        }
        return pb.Job(job_id=name, environment={"TOKEN": "hunter3"}, **(secret | more))

    @contextmanager
    def agent(
        self, name: str, node: str, *devices: pb.Device, problem: str = ""
    ) -> Iterator[Agent]:
        """Attach as a node, with a caller's token."""
        with grpc.insecure_channel(self.target) as channel:
            agent = Agent(channel, self.tokens[name], node, devices or (DEVICE,), problem)
            try:
                yield agent
            finally:
                agent.close()


class Agent:
    """Agent whose reports are those of the test."""

    def __init__(
        self,
        channel: grpc.Channel,
        token: str,
        node: str,
        devices: tuple[pb.Device, ...],
        problem: str,
    ) -> None:
        self.stub: Any = pb_grpc.NodeServiceStub(channel)
        self.metadata = Credentials(token).metadata
        self._reports: queue.Queue[pb.NodeReport | None] = queue.Queue()
        self._node, self._devices, self._number, self._problem = node, devices, 0, problem
        self.report()
        self._call = self.stub.Attach(self._heartbeats(), metadata=self.metadata)

    def report(self, *tasks: pb.Task, commands: int = 0, **more: Any) -> None:
        """Send a report."""
        self._number += 1
        values = {"node": self._node, "devices": self._devices, "problem": self._problem} | more
        self._reports.put(
            pb.NodeReport(
                agent_id="a",
                supports_chunks=True,
                number=self._number,
                tasks=tasks,
                commands_version=commands,
                **values,
            )
        )

    def _heartbeats(self) -> Iterator[pb.NodeReport]:
        """Yield reports, and repeat the last one as a heartbeat."""
        report: pb.NodeReport | None = pb.NodeReport()
        while report is not None:
            with suppress(queue.Empty):
                report = self._reports.get(timeout=0.5)
            if report is not None:
                yield report

    def commands(self) -> pb.NodeCommands:
        """Return the next commands, received in messages of gRPC's default size."""
        found = None
        while found is None or found.has_more:
            found = merge_commands(found, next(self._call))
        return found

    def commands_for(self, *names: str) -> pb.NodeCommands:
        """Return commands with these jobs."""
        while True:
            found = self.commands()
            if {one.job.job_id for one in found.tasks} == set(names) and not found.unchanged:
                return found

    def close(self) -> None:
        """End the stream."""
        self._reports.put(None)
        self._call.cancel()
