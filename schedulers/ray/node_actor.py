"""Actor that runs the agent of one Ray node, on the devices that Ray granted to the actor.

The agent is a process of its own, which ends with the actor. Its jobs end with their lease.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from presage.errors import ConfigError
from presage.schedulers.live.agent.detected_devices import VISIBLE_GPUS, detected_gpus, host_bytes
from presage.schedulers.live.process_supervisor import ProcessSpec, Supervisor
from presage.schedulers.ray.node_bundles import NodeBundle
from presage.system.files.atomic_file import replace_text
from presage.system.processes.bound_process import bound_command

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RayNode:
    """Node of a live cluster on Ray.

    Attributes
    ----------
    name : str
        Host name and the beginning of Ray's id of the node.
    devices : dict of str to int
        Number of devices of each kind.
    """

    name: str
    devices: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of the agents of a cluster, the same for all of them.

    Attributes
    ----------
    cluster_id : str
        Name of the cluster's folders on the nodes.
    certificate : str
        Certificate of the controller, as PEM.
    options : tuple of str
        More options of ``presage cluster agent``.
    """

    cluster_id: str
    controller: str
    certificate: str
    options: tuple[str, ...] = ()


class NodeActor:
    """Owner of a node's devices, and supervisor of its agent."""

    def __init__(self, bundle: NodeBundle, memory_gib: float | None) -> None:
        import ray

        self._bundle, self._memory_gib = bundle, memory_gib
        node_id = ray.get_runtime_context().get_node_id()
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:48]
        self._name = f"{host}-{node_id[:8]}"

    def node(self) -> RayNode:
        """Return the node.

        Raises
        ------
        ConfigError
            The driver shows fewer GPUs than Ray granted.
        """
        if not self._bundle.gpus:
            return RayNode(self._name, {f"cpu-{len(self._processors())}": 1})
        found = detected_gpus(None)
        if len(found) != self._bundle.gpus:
            raise ConfigError(
                f"node {self._name}: Ray granted {self._bundle.gpus} GPUs, and the driver shows "
                f"{len(found)} of them; see nvidia-smi -L and {VISIBLE_GPUS} on the node"
            )
        return RayNode(self._name, dict(Counter(slot.kind for slot in found)))

    def run(self, settings: AgentSettings, token: str) -> None:
        """Run the agent, and start it again if it ends. Returns never."""
        folder = agent_folder(settings.cluster_id, self._name)
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, exist_ok=True)
        files = {"agent.token": token, "controller.pem": settings.certificate}
        for name, text in files.items():
            replace_text(folder / name, text)
        command = [
            sys.executable, "-m", "presage", "cluster", "agent", "--node", self._name,
            "--controller", settings.controller, "--state", str(folder),
            "--token-file", str(folder / "agent.token"), "--ca", str(folder / "controller.pem"),
            *self._device_options(), *settings.options,
            *(("--allow-root-jobs",) if os.geteuid() == 0 else ()),
        ]  # fmt: skip
        supervisor = Supervisor(log.warning)
        supervisor.start(ProcessSpec("agent", bound_command(command), folder / "agent.log"))
        supervisor.run()

    def _device_options(self) -> list[str]:
        memory = [] if self._memory_gib is None else ["--memory-gib", str(self._memory_gib)]
        if self._bundle.gpus:  # the agent detects those that Ray lets this actor use
            return memory
        cpus = self._processors()
        gib = self._memory_gib or host_bytes() / 2**30
        device = f"cpu-{len(cpus)}={','.join(map(str, cpus))}"
        return ["--device", device, "--memory-gib", f"{gib:.3f}"]

    def _processors(self) -> list[int]:
        """Return the processors: Ray grants a number of them, and does not say which."""
        return sorted(os.sched_getaffinity(0))[: self._bundle.cpus]


def agent_folder(cluster_id: str, node: str) -> Path:
    """Return the state folder of an agent, on a local disk of its node."""
    return Path(tempfile.gettempdir()) / f"presage-ray-{os.geteuid()}-{cluster_id}" / node
