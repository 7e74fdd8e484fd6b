"""Live cluster on two nodes of a Ray cluster of this host, whose driver is a process."""

from __future__ import annotations

import subprocess
from pathlib import Path

from presage.schedulers.live.client.client import ClusterClient
from presage.serving.client.credentials import Credentials
from tests.schedulers.live.cluster import ENVIRONMENT, PRESAGE, LiveCluster, until
from tests.support.ray_nodes import RayNodes

LEASE_S = 6.0


class RayCluster(LiveCluster):
    """Cluster whose controller and agents are started by `presage cluster on-ray`."""

    def __init__(self, folder: Path, nodes: RayNodes, *options: object) -> None:
        super().__init__(folder, lease_s=LEASE_S)
        self.nodes, self.home = nodes, folder / "home"
        words = ["--address", nodes.address, "--state", self.home, "--port", self.port]
        words += ["--lease-s", LEASE_S, "--memory-gib", 1, *options]
        self.start("driver", [*PRESAGE, "on-ray", *words])
        until((self.home / "environment").exists, 120.0, what=self.said)
        token = (self.home / "user.token").read_text().strip()
        self.credentials = Credentials(token, ca=self.home / "controller.pem")
        self.host = self.address.rpartition(":")[0]
        self.client = ClusterClient(self.address, credentials=self.credentials, timeout_s=20.0)

    @property
    def address(self) -> str:
        """Address of the controller."""
        text = (self.home / "environment").read_text()
        return text.partition("PRESAGE_CLUSTER=")[2].partition("\n")[0].strip("'")

    @property
    def driver(self) -> subprocess.Popen[bytes]:
        """Process of `presage cluster on-ray`."""
        return self.running["driver"]

    def said(self) -> str:
        """Return what the driver has printed."""
        return self.log("driver").read_text()

    def ready(self, count: int = 2) -> list[str]:
        """Wait until so many nodes get jobs, and return their names."""

        def names() -> list[str]:
            found = [node.name for node in self.all().nodes if not node.reason]
            return found if len(found) == count else []

        found: list[str] = until(names, 120.0, what=self.said)
        return found


__all__ = ["ENVIRONMENT", "LEASE_S", "RayCluster"]
