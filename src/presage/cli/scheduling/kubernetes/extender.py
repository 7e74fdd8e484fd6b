"""``presage kubernetes extender``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli.command import command
from presage.cli.options.tls import PANEL, TlsOptions
from presage.cli.scheduling.kubernetes.options import (
    ClusterOptions,
    PlanningOptions,
    TopologyOptions,
    until_signal,
)
from presage.system.text.terminal import say

if TYPE_CHECKING:
    from presage.schedulers.kubernetes.extender.extender_server import ExtenderServer


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Where the extender listens, and which requests it accepts."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free port.")] = 8888
    prefix: Annotated[str, typer.Option(metavar="PATH", help="Prefix of all paths of the URL.")] = (
        ""
    )
    max_body_mib: Annotated[
        int, typer.Option(min=1, max=128, help="Maximum size of authenticated requests, in MiB.")
    ] = 32
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Require a token from this file (see `presage token`). Binding and preempting "
            "need the role bind.",
            rich_help_panel=PANEL,
        ),
    ] = None

    def server(self, verbs: Any, tls: TlsOptions) -> ExtenderServer:
        """Return a server, which listens once it is entered."""
        from presage.schedulers.kubernetes.extender.extender_http import BodyLimits
        from presage.schedulers.kubernetes.extender.extender_server import ExtenderServer
        from presage.serving.authentication.token_file import TokenFile

        return ExtenderServer(
            verbs,
            host=self.host,
            port=self.port,
            prefix=self.prefix,
            allow_remote=tls.allow_remote,
            tls=tls.tls(),
            tokens=TokenFile(self.tokens) if self.tokens else None,
            body_limits=BodyLimits(body_mib=self.max_body_mib),
        )


@command(
    examples="""
    presage kubernetes extender --predictor presage:50051 \\
      --token-file /etc/presage/token \\
      --host 0.0.0.0 --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt
    """
)
def extender(
    planning: PlanningOptions,
    http: HttpOptions,
    tls: TlsOptions,
    topology: TopologyOptions,
    cluster: ClusterOptions,
) -> None:
    """Filter and rank nodes for kube-scheduler by forecasts, so that pods can share GPUs.

    Without --client-ca and --tokens it listens on loopback only, and does not bind or preempt.
    Runs until SIGTERM or Ctrl-C.
    """
    from presage.schedulers.kubernetes.extender.extender import Extender
    from presage.schedulers.kubernetes.extender.live_cluster import LiveCluster

    tls.tls()  # errors in options are reported before the cluster is read
    policy, forecaster = planning.gang_policy(), planning.forecaster()
    fleet_options = topology.fleet_options()
    with cluster.connected() as (api, cache):
        stopping = until_signal()
        verbs = Extender(LiveCluster(api, cache), policy, forecaster, fleet_options)
        with http.server(verbs, tls) as server:
            say(f"answering kube-scheduler at {server.url}", err=True)
            stopping.wait()
