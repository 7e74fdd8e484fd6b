"""Live cluster on two nodes of a Ray cluster of this host, whose driver is a process."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from presage.schedulers.live.agent.tasks.processes import pids
from presage.schedulers.live.client.client import ClusterClient
from presage.serving.client.credentials import Credentials
from tests.schedulers.live.cluster import PRESAGE, LiveCluster, until
from tests.schedulers.live.job import processes_of
from tests.schedulers.ray.ray_nodes import RayNodes

LEASE_S = 6.0


class RayCluster(LiveCluster):
    """Cluster whose controller and agents are started by `presage cluster on-ray`."""

    def __init__(self, folder: Path, nodes: RayNodes, *options: object) -> None:
        super().__init__(folder, lease_s=LEASE_S)
        self.nodes, self.home = nodes, folder / "home"
        words = ["--address", nodes.address, "--state", self.home, "--port", self.port]
        words += ["--lease-s", LEASE_S, "--memory-gib", 1, *options]
        self.start("driver", [*PRESAGE, "on-ray", *words])
        until((self.home / "ray_cluster_id").exists, 120.0, what=self.said)
        token = (self.home / "user.token").read_text().strip()
        self.credentials = Credentials(token, ca=self.home / "controller.pem")
        self.client = ClusterClient(self.address, credentials=self.credentials, timeout_s=20.0)

    @property
    def address(self) -> str:
        """Address of the controller."""
        text = (self.home / "environment").read_text()
        return text.partition("PRESAGE_CLUSTER=")[2].partition("\n")[0].strip("'")

    @property
    def cluster_id(self) -> str:
        """Name of the agents' folders."""
        return (self.home / "ray_cluster_id").read_text()

    @property
    def driver(self) -> subprocess.Popen[bytes]:
        """Process of `presage cluster on-ray`."""
        return self.running["driver"]

    def said(self) -> str:
        """Return what the driver has printed."""
        return self.log("driver").read_text()

    def processes(self, words: str = "-m presage cluster") -> list[int]:
        """Return the processes of this cluster with words in their command line."""
        marks, found = (str(self.home), f"-{self.cluster_id}/"), []
        for pid in pids():
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if words in line and any(one in line for one in marks):
                    found.append(pid)
        return found

    def is_gone(self) -> bool:
        """Return whether no process of controller, agents, shims and jobs is left."""
        return not (self.processes() or self.shims() or processes_of(str(self.ledger)))

    def shims(self) -> list[int]:
        """Return the shims of this cluster's tasks, whose folders are those of the agents."""
        return self.processes("tasks.shim import")

    def ready(self, count: int = 2) -> list[str]:
        """Wait until so many nodes get jobs, and return their names."""

        def names() -> list[str]:
            found = [node.name for node in self.all().nodes if not node.reason]
            return found if len(found) == count else []

        found: list[str] = until(names, 120.0, what=self.said)
        return found

    def close(self) -> None:
        """End all processes, and remove the agents' folders."""
        shims = self.shims()
        super().close()
        for pid in [*shims, *self.processes()]:
            self.signal(pid, signal.SIGKILL)
        until(lambda: not processes_of(str(self.ledger)))
        for folder in Path(tempfile.gettempdir()).glob(f"presage-ray-*-{self.cluster_id}"):
            shutil.rmtree(folder, ignore_errors=True)
