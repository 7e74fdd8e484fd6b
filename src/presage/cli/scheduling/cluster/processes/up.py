"""``presage cluster up``: a controller and agents on this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import HOST, PORT, STATE_FOLDER
from presage.cli.scheduling.cluster.processes.controller import CONTROLLING
from presage.cli.scheduling.cluster.processes.node_devices import NodeDevices, nodes_of
from presage.cli.scheduling.cluster.processes.options import (
    HardShares,
    Lease,
    Policy,
    policy_named,
)
from presage.cli.scheduling.cluster.processes.tokens import ClusterTokens, make_tokens, own_state
from presage.cli.scheduling.options import Hazards, Predictor, Risk
from presage.schedulers.live.forecast_source import check_forecast_source, is_service_address
from presage.schedulers.live.process_supervisor import ProcessSpec, supervising
from presage.system.files.data_folder import data_folder
from presage.system.text.terminal import say


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """Settings of a cluster on this machine."""

    agents: Annotated[
        int,
        typer.Option(
            min=1, help="Number of nodes. They share this machine's GPUs, or its processors."
        ),
    ] = 1
    policy: Policy = "sharing"
    predictor: Predictor = "none"
    risk: Risk = 0.1
    lease_s: Lease = 120.0
    hazards: Hazards = None
    port: Annotated[int, typer.Option(help="Port of the controller.")] = PORT
    memory_gib: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            show_default="an equal part of what there is",
            help="Memory of each node's devices, in GiB.",
        ),
    ] = None
    hard_shares: HardShares = False
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=STATE_FOLDER,
            help="Folder for the journal, logs and checkpoints.",
        ),
    ] = None

    @property
    def folder(self) -> Path:
        """State folder."""
        return self.state or data_folder() / "cluster"

    @property
    def target(self) -> str:
        """Address of the controller."""
        return f"{HOST}:{self.port}"

    def controller(self, tokens: ClusterTokens) -> ProcessSpec:
        """Return the process of the controller."""
        command = [
            *_presage(), "controller", "--journal", str(self.folder / "controller.db"),
            "--policy", self.policy, "--predictor", self.predictor, "--risk", str(self.risk),
            "--lease-s", str(self.lease_s), "--port", str(self.port), "--tokens", str(tokens.file),
            "--leaders", str(self.folder / "leaders"),
            *(() if self.hazards is None else ("--hazards", str(self.hazards))),
        ]  # fmt: skip
        return ProcessSpec("controller", command, self.folder / "controller.log", {})

    def agent(self, name: str, devices: NodeDevices, tokens: ClusterTokens) -> ProcessSpec:
        """Return the process of an agent."""
        command = [
            *_presage(), "agent", "--node", name, "--controller", self.target,
            "--state", str(self.folder / name), "--checkpoints", str(self.folder / "checkpoints"),
            "--token-file", str(tokens.of_node[name]),
            *devices.options, "--predictor", self.predictor, "--risk", str(self.risk),
            *(("--report", self.predictor) if is_service_address(self.predictor) else ()),
            *(("--hard-shares",) if self.hard_shares else ()),
            *(("--allow-root-jobs",) if os.geteuid() == 0 else ()),
        ]  # fmt: skip
        return ProcessSpec(name, command, self.folder / f"{name}.log", devices.variables)


@command(
    examples="""
    presage cluster up --agents 2

    # Share devices by the forecasts of a prediction server
    presage cluster up --agents 2 --predictor 127.0.0.1:50051
    """
)
def up(cluster: LocalCluster) -> None:
    """Run a controller and agents on this machine; a process that ends is restarted.

    Runs until SIGTERM or Ctrl-C. Jobs keep running for as long as their lease, and the next
    `presage cluster up` finds them again.
    """
    from presage.schedulers.forecasters.outage_hazards import read_outage_hazards
    from presage.serving.authentication.listen import resolve_address
    from presage.serving.server_options import Options

    nodes = {f"n{i}": node for i, node in enumerate(nodes_of(cluster.agents, cluster.memory_gib))}
    check_forecast_source(cluster.predictor, cluster.risk)
    policy_named(cluster.policy)
    read_outage_hazards(cluster.hazards)
    with own_state(cluster.folder):
        resolve_address(Options(host=HOST, port=cluster.port))
        counts = {name: node.count_by_kind for name, node in nodes.items()}
        tokens = make_tokens(cluster.folder, cluster.port, counts)
        agents = [cluster.agent(name, node, tokens) for name, node in nodes.items()]
        tokens.user.write()  # the port is free: no other controller's token is replaced
        try:
            _run_together(cluster.controller(tokens), agents, cluster.target)
        finally:
            tokens.user.remove()


def _run_together(controller: ProcessSpec, agents: list[ProcessSpec], target: str) -> None:
    """Run the controller and agents until a signal."""
    say_error = partial(say, err=True)
    with supervising(say_error) as supervisor:
        # If another controller has the port, agents must not connect to it.
        if supervisor.start_until(controller, CONTROLLING):
            for spec in agents:
                supervisor.start(spec)
            count = "1 agent" if len(agents) == 1 else f"{len(agents)} agents"
            say_error(f"controller at {target}, {count}; Ctrl-C or SIGTERM stops them")
            supervisor.run()
        say_error("stopping controller and agents; jobs keep running for their lease")


def _presage() -> list[str]:
    return [sys.executable, "-m", "presage", "cluster"]
