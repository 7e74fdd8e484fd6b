"""``presage cluster on-ray``: a controller here, and an agent on each node of a Ray cluster."""

from __future__ import annotations

import secrets
import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import PORT, STATE_FOLDER
from presage.cli.scheduling.cluster.processes.controller import CONTROLLING
from presage.cli.scheduling.cluster.processes.options import Lease, Policy, policy_named
from presage.cli.scheduling.cluster.processes.tokens import own_state
from presage.cli.scheduling.options import Hazards, Predictor, Risk
from presage.errors import ConfigError, PresageError
from presage.schedulers.live.forecast_source import check_forecast_source, is_service_address
from presage.schedulers.live.process_supervisor import ProcessSpec, supervising
from presage.system.files.atomic_file import replace_text
from presage.system.files.data_folder import data_folder
from presage.system.text.terminal import say

if TYPE_CHECKING:
    from presage.schedulers.live.process_supervisor import Supervisor
    from presage.schedulers.ray.cluster_files import ClusterFiles
    from presage.schedulers.ray.node_actor import AgentSettings
    from presage.schedulers.ray.node_actors import NodeActors
    from presage.schedulers.ray.node_bundles import NodeBundle


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNodes:
    """What the cluster reserves of Ray."""

    address: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Ray cluster; auto is the one of this machine."),
    ] = "auto"
    nodes: Annotated[
        int | None,
        typer.Option(min=1, show_default="all that have devices", help="Number of nodes."),
    ] = None
    gpus: Annotated[
        int | None,
        typer.Option(min=0, show_default="all", help="GPUs to use of each node."),
    ] = None
    cpus: Annotated[
        int | None,
        typer.Option(min=1, show_default="all", help="Processors to use of each node."),
    ] = None
    memory_gib: Annotated[
        float | None,
        typer.Option(min=0.01, show_default="all of it", help="Memory of each device, in GiB."),
    ] = None
    grant_s: Annotated[
        float, typer.Option(min=1.0, help="Seconds to wait until Ray grants the nodes.")
    ] = 60.0

    def bundles(self, ray: Any) -> list[NodeBundle]:
        """Return what to reserve on each node."""
        from presage.schedulers.ray.node_bundles import node_bundles

        return node_bundles(ray.nodes(), count=self.nodes, cpus=self.cpus, gpus=self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayClusterOptions:
    """Settings of the controller and of the agents."""

    policy: Policy = "sharing"
    predictor: Predictor = "none"
    risk: Risk = 0.1
    lease_s: Lease = 120.0
    hazards: Hazards = None
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            show_default="as Ray knows this machine",
            help="Address of this machine for the nodes and for clients.",
        ),
    ] = ""
    port: Annotated[int, typer.Option(help="Port of the controller.")] = PORT
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="checkpoints in the state folder",
            help="Folder for the checkpoints of jobs, on storage that all nodes share.",
        ),
    ] = None
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=STATE_FOLDER,
            help="Folder for the journal, the tokens and the log of the controller.",
        ),
    ] = None

    @property
    def folder(self) -> Path:
        """State folder, as an absolute path: agents use it on other machines."""
        return (self.state or data_folder() / "cluster").absolute()

    def controller(self, files: ClusterFiles, host: str) -> ProcessSpec:
        """Return the process of the controller, which ends with this process."""
        from presage.system.processes.bound_process import bound_command

        command = [
            sys.executable, "-m", "presage", "cluster", "controller",
            "--journal", str(self.folder / "controller.db"), "--policy", self.policy,
            *self._forecasts, "--lease-s", str(self.lease_s),
            "--host", host, "--port", str(self.port), "--tokens", str(files.tokens),
            "--tls-cert", str(files.certificate), "--tls-key", str(files.key),
            "--leaders", str(self.folder / "leaders"),
            *(() if self.hazards is None else ("--hazards", str(self.hazards))),
        ]  # fmt: skip
        return ProcessSpec("controller", bound_command(command), self.folder / "controller.log")

    def agents(self, files: ClusterFiles, host: str) -> AgentSettings:
        """Return the settings of the agents."""
        from presage.schedulers.ray.node_actor import AgentSettings

        report = ("--report", self.predictor) if is_service_address(self.predictor) else ()
        checkpoints = (self.checkpoints or self.folder / "checkpoints").absolute()
        return AgentSettings(
            cluster_id=_cluster_id(self.folder),
            controller=f"{host}:{self.port}",
            certificate=files.certificate.read_text(),
            options=("--checkpoints", str(checkpoints), *self._forecasts, *report),
        )

    @property
    def _forecasts(self) -> tuple[str, ...]:
        return "--predictor", self.predictor, "--risk", str(self.risk)


@command(
    examples="""
    presage cluster on-ray --state /shared/presage

    # Two nodes of a Ray cluster, with four GPUs of each
    presage cluster on-ray --nodes 2 --gpus 4 --predictor head:50051
    """
)
def on_ray(cluster: RayClusterOptions, nodes: RayNodes) -> None:
    """Run a live cluster on nodes of a Ray cluster: the controller here, an agent on each node.

    Each agent belongs to an actor that holds the node's devices. Runs until SIGTERM, Ctrl-C or
    the end of the placement group; jobs then end within their lease.
    """
    from presage.schedulers.forecasters.outage_hazards import read_outage_hazards
    from presage.system.processes.ray_connection import RayConnectionError, ray_connection

    check_forecast_source(cluster.predictor, cluster.risk)
    policy_named(cluster.policy)
    read_outage_hazards(cluster.hazards)
    with own_state(cluster.folder):
        try:
            with ray_connection(nodes.address) as ray:
                _run(ray, cluster, nodes)
        except RayConnectionError as error:
            raise ConfigError(
                f"no Ray cluster at {nodes.address!r} ({error}); start one with "
                "`ray start --head`, or set --address"
            ) from error


def _run(ray: Any, cluster: RayClusterOptions, nodes: RayNodes) -> None:
    """Reserve the nodes, and run controller and agents until a signal."""
    from presage.schedulers.ray.cluster_files import ClusterFiles
    from presage.schedulers.ray.node_actors import NodeActors, reserved_nodes

    report = partial(say, err=True)
    bundles = nodes.bundles(ray)
    host = cluster.host or ray.util.get_node_ip_address()
    files = ClusterFiles(cluster.folder, host, cluster.port)
    # After Ray's own handler of SIGTERM, which this replaces.
    with reserved_nodes(ray, bundles, nodes.grant_s) as group, supervising(report) as supervisor:
        if supervisor.start_until(cluster.controller(files, host), CONTROLLING):
            actors = NodeActors(
                ray, group, bundles, cluster.agents(files, host), memory_gib=nodes.memory_gib,
                token_of=files.node_token, report=report,
            )  # fmt: skip
            report(f"controller at {host}:{cluster.port}; source {files.environment}")
            _supervise(supervisor, actors)
        report("stopping controller and agents; jobs end within their lease")


def _supervise(supervisor: Supervisor, actors: NodeActors) -> None:
    """Keep the controller and the actors running until a signal, or until an actor cannot run."""
    problems: list[PresageError] = []

    def watch() -> None:
        try:
            while not supervisor.stopping:
                actors.check()
        except PresageError as error:
            problems.append(error)
            supervisor.stopping = True

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    supervisor.run()
    watching.join(5.0)
    if problems:
        raise problems[0]


def _cluster_id(folder: Path) -> str:
    """Return the id that names the cluster's folders on the nodes; the same after a restart."""
    path = folder / "ray_cluster_id"
    if not path.is_file():
        replace_text(path, secrets.token_hex(4))
    return path.read_text().strip()
