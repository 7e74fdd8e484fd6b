"""``presage inc arbiter``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from presage.cli.command import command
from presage.cli.options.tls import PANEL, TlsOptions
from presage.cli.scheduling.inc.options import HOST, PORT
from presage.cli.scheduling.options import AccessLog
from presage.system.files.data_folder import data_folder
from presage.system.text.terminal import say

if TYPE_CHECKING:
    from presage.collectives.arbiter.arbiter import Arbiter
    from presage.collectives.arbiter.domain import Domain
    from presage.serving.server_options import Options

ARBITRATING = "arbitrating at"  # what an arbiter prints once ranks can connect
_LIMITS = "Limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainOptions:
    """Switches of the domain, and how their jobs agree."""

    switch: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=HOST:PORT[,KEY=VALUE...]",
            help="Controlled switch of the domain. Keys: slots (default: by the cluster file, or "
            "1), and mbit and latency_us of the slowest link of its jobs. The token of the switch "
            "is read from PRESAGE_SWITCH_TOKEN.",
        ),
    ]
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Cluster file with the topology, whose `inc` names the switches, such as rack/r0. "
            "Without it every job uses the only switch.",
        ),
    ] = None
    agreement: Annotated[
        Literal["in_band", "two_phase"],
        typer.Option(
            metavar="NAME",
            help="How ranks agree on decisions: in_band or two_phase. Ranks wait during each "
            "change with two_phase.",
        ),
    ] = "in_band"
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="data/inc/arbiter.db of a checkout, else in ~/.local/state/presage/inc",
            help="File with the state of the arbiter. Each domain needs its own.",
        ),
    ] = None

    def domain(self) -> Domain:
        """Return the switches of the domain.

        Raises
        ------
        ConfigError
            A switch is malformed, or there are several without a topology.
        """
        import os

        from presage.collectives.arbiter.domain import one_switch, parse_switch, topology_domain
        from presage.errors import ConfigError
        from presage.schedulers.cluster_files.cluster_file import read_cluster
        from presage.schedulers.core.capacity.job_switches import switches

        token = os.environ.get("PRESAGE_SWITCH_TOKEN", "")
        if self.cluster is None:
            specs = [parse_switch(text, token) for text in self.switch]
            if len(specs) > 1:
                raise ConfigError("several switches need --cluster FILE with their places")
            return one_switch(specs[0])
        topology = read_cluster(self.cluster).topology
        slots = {switch.name: switch.slots for switch in switches(topology)}
        return topology_domain(topology, [parse_switch(t, token, slots) for t in self.switch])


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Where the arbiter listens, what it logs, and how much it accepts."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = HOST
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free port.")] = PORT
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, metavar="PORT", help="Port for Prometheus metrics."),
    ] = None
    access_log: AccessLog = False
    lease_s: Annotated[
        float,
        typer.Option(
            "--lease",
            min=0.5,
            max=3600,
            metavar="SECONDS",
            help="Time after which a job loses its slot when a rank has disconnected.",
            rich_help_panel=_LIMITS,
        ),
    ] = 5.0
    horizon_s: Annotated[
        float,
        typer.Option(
            "--horizon",
            min=0.5,
            max=600,
            metavar="SECONDS",
            help="Time for which decisions are made, and used without the arbiter.",
            rich_help_panel=_LIMITS,
        ),
    ] = 10.0
    max_jobs: Annotated[
        int,
        typer.Option(min=1, help="Greatest number of jobs.", rich_help_panel=_LIMITS),
    ] = 256
    max_ranks: Annotated[
        int,
        typer.Option(min=1, help="Greatest number of connected ranks.", rich_help_panel=_LIMITS),
    ] = 4096
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Require a token from this file (see `presage token`): role submit for ranks, "
            "view for status. Without it and --client-ca, only jobs of the user that starts the "
            "arbiter may use it.",
            rich_help_panel=PANEL,
        ),
    ] = None

    def server_options(self, tls: TlsOptions) -> Options:
        """Return the options of the gRPC server."""
        from presage.serving.server_options import Options

        return Options(
            host=self.host,
            port=self.port,
            allow_remote=tls.allow_remote,
            tls=tls.tls(),
            tokens=self.tokens,
            access_log=self.access_log,
        )


@command(
    examples="""
    presage inc arbiter --switch tor=10.0.0.1:7200,slots=1,mbit=50

    # For ranks on other machines
    presage inc arbiter --switch tor=10.0.0.1:7200 --host 0.0.0.0 \\
      --tokens tokens --tls-cert head.pem --tls-key head.key
    """
)
def arbiter(*, domain: DomainOptions, listen: ListenOptions, tls: TlsOptions) -> None:
    """Decide which AllReduces of which jobs run on the switches of a domain.

    Runs until SIGTERM or Ctrl-C. Jobs never wait for it: without it they use the switches until
    their decisions end, and ring after that.
    """
    import uvloop

    from presage.collectives.arbiter.arbiter import Arbiter
    from presage.collectives.arbiter.arbiter_options import ArbiterOptions
    from presage.collectives.arbiter.journal import Journal
    from presage.collectives.arbiter.planner import PlannerOptions
    from presage.collectives.arbiter.server.server import run_arbiter
    from presage.collectives.arbiter.switches import SoftwareSwitch, SwitchSet
    from presage.serving.server.log import log_as_json

    options, found = listen.server_options(tls), domain.domain()
    settings = ArbiterOptions(
        agreement=domain.agreement,
        lease_s=listen.lease_s,
        max_jobs=listen.max_jobs,
        planner=PlannerOptions(horizon_s=listen.horizon_s),
    )
    log_as_json()

    async def serve() -> None:
        controls = {switch.name: SoftwareSwitch(switch) for switch in found.switches}
        working = Arbiter(SwitchSet(found, controls), journal, settings)
        with _metrics(options, listen.metrics_port, working) as metrics:
            await run_arbiter(working, options, _say_ready, metrics, listen.max_ranks)

    journal = Journal(domain.journal or data_folder() / "inc" / "arbiter.db")
    try:
        uvloop.run(serve())
    finally:
        journal.close()


@contextmanager
def _metrics(options: Options, port: int | None, arbiter: Arbiter) -> Iterator[Any]:
    """Yield the metrics of requests; they are served with those of the arbiter."""
    from presage.collectives.arbiter.server.arbiter_metrics import ArbiterCollector
    from presage.serving.server.prometheus_metrics import Metrics, serve_metrics

    metrics = Metrics()
    if port is None:
        yield metrics
        return
    metrics.registry.register(ArbiterCollector(arbiter))
    stop = serve_metrics(metrics, options.metrics_host, port)
    try:
        yield metrics
    finally:
        stop()


def _say_ready(target: str) -> None:
    say(f"{ARBITRATING} {target}", err=True)
