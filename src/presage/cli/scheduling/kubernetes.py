"""``presage kubernetes``: gangs and forecasts for a Kubernetes cluster."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.errors import ConfigError, ServiceError
from presage.schedulers.live.forecast_source import live_forecaster
from presage.system.terminal import say

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from presage.schedulers.core.policy import Policy
    from presage.schedulers.kubernetes.fleet import Reading

app = typer.Typer(
    help="Gangs and forecasts for a Kubernetes cluster, beside its own scheduler "
    "(docs/kubernetes.md).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Forecast = Annotated[
    str,
    typer.Option(
        metavar="WHO", help="HOST:PORT of a service, a release's folder, or none: whole devices."
    ),
]
PolicyName = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="POLICY",
        help="NAME or MODULE:CLASS of a policy that plans gangs: gang:alpha=2:near=rack "
        "(docs/gang_scheduling.md).",
    ),
]
TokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="With the token that is shown to the service.")
]
Authority = Annotated[
    Path | None, typer.Option(metavar="PEM", help="Who vouches for the service: then encrypted.")
]
Risk = Annotated[
    float, typer.Option(help="Of a job taking more memory than is foretold: 0.05, 0.1, 0.5.")
]
Resource = Annotated[str, typer.Option(metavar="NAME", help="What pods ask devices by.")]
Topology = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LEVEL=LABEL",
        help="Node label that names a level of the topology; by default "
        "network.topology.nvidia.com/leaf names the rack, and network.topology.nvidia.com/spine "
        "the spine.",
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Of the cluster; else $KUBECONFIG, ~/.kube/config, or the pod's own."
    ),
]
Context = Annotated[str | None, typer.Option(metavar="NAME", help="Of the kubeconfig.")]


@app.command()
def gate(
    forecast: Forecast = "none",
    policy: PolicyName = "gang",
    token_file: TokenFile = None,
    ca: Authority = None,
    risk: Risk = 0.1,
    resource: Resource = "nvidia.com/gpu",
    topology: Topology = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Plan gangs, and release their pods to kube-scheduler when they are whole."""
    from presage.schedulers.kubernetes.gate.gang_gate import Gate
    from presage.schedulers.kubernetes.gate.gate_loop import run_gate
    from presage.schedulers.kubernetes.gate.writer import Writer

    planner = Gate(
        _gang(policy), live_forecaster(forecast, risk, token_file, ca), _reading(resource, topology)
    )
    with _connected(kubeconfig, context) as (api, cache):
        stopping = _until_told()
        say(f"planning gangs of {api.configuration.host}", err=True)
        run_gate(planner, cache, Writer(api, cache.put), stopping)


@app.command()
def extender(
    forecast: Forecast = "none",
    policy: PolicyName = "gang",
    token_file: TokenFile = None,
    ca: Authority = None,
    risk: Risk = 0.1,
    host: Annotated[str, typer.Option(help="To listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="To listen on; 0 for any that is free.")] = 8888,
    prefix: Annotated[str, typer.Option(metavar="PATH", help="Of all paths.")] = "",
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Listen beyond loopback without TLS.")
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(metavar="PEM", help="Certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="PEM", help="Its key.")] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Require client certificates that this one signed."),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Require a token of this file (presage token); of role bind, to bind and preempt.",
        ),
    ] = None,
    max_body_mib: Annotated[
        int, typer.Option(min=1, max=128, help="Largest request with credentials, in MiB.")
    ] = 32,
    resource: Resource = "nvidia.com/gpu",
    topology: Topology = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Answer kube-scheduler: where pods fit by their forecasts, and how well.

    Without --client-ca or --tokens it listens on loopback only, and does not bind or preempt.
    """
    from presage.schedulers.kubernetes.extender.extender import Extender
    from presage.schedulers.kubernetes.extender.extender_http import BodyLimits
    from presage.schedulers.kubernetes.extender.extender_server import ExtenderServer
    from presage.schedulers.kubernetes.extender.live_cluster import LiveCluster
    from presage.serving.authentication.token_file import TokenFile as AcceptedTokens
    from presage.serving.server_options import Tls

    if (tls_cert is None) != (tls_key is None):
        raise ServiceError("give both --tls-cert and --tls-key, or neither")
    if client_ca is not None and tls_cert is None:
        raise ServiceError("--client-ca goes with --tls-cert and --tls-key; give them too")
    tls = Tls(tls_cert, tls_key, client_ca) if tls_cert and tls_key else None
    accepted = AcceptedTokens(tokens) if tokens else None
    limits, made, reading = (
        _gang(policy),
        live_forecaster(forecast, risk, token_file, ca),
        _reading(resource, topology),
    )
    with _connected(kubeconfig, context) as (api, cache):
        stopping = _until_told()
        verbs = Extender(LiveCluster(api, cache), limits, made, reading)
        with ExtenderServer(
            verbs, host=host, port=port, prefix=prefix, allow_remote=allow_remote, tls=tls,
            tokens=accepted, bodies=BodyLimits(body_mib=max_body_mib),
        ) as server:  # fmt: skip
            say(f"answering kube-scheduler at {server.url}", err=True)
            stopping.wait()


@app.command()
def gangs(
    resource: Resource = "nvidia.com/gpu",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show all gangs: how many pods wait, are released and bound, where, and why not."""
    from presage.cli.render import print_json
    from presage.schedulers.forecasters.no_forecasts import NoForecasts
    from presage.schedulers.kubernetes.gate.gang_gate import Gate
    from presage.schedulers.kubernetes.gate.pod_gang import gangs_of

    with _connected(kubeconfig, context) as (_, cache):
        snapshot = cache.snapshot()
    found = gangs_of(snapshot.pods.values(), snapshot.pod_groups)
    planner = Gate(_gang("gang"), NoForecasts, _reading(resource, None))
    why_not = planner.why_not(snapshot, time.time())
    rows = [gang.summary(why_not.get(job_id, "")) for job_id, gang in found.items()]
    if as_json:
        print_json(rows)
        return
    from presage.system.terminal import Console, Table

    table = Table(title=f"{len(rows)} gangs")
    for column in ("gang", "state", "needs", "waiting", "released", "bound", "devices"):
        right = column in ("needs", "waiting", "released", "bound")
        table.add_column(column, justify="right" if right else "left")
    for row in rows:
        table.add_row(*(str(row[key]) for key in (
            "gang", "state", "min_member", "waiting", "released", "bound", "devices"
        )))  # fmt: skip
    Console().print(table)
    for row in rows:
        if row["why"]:
            Console().print(f"{row['gang']}: {row['why']}")


@contextmanager
def _connected(kubeconfig: Path | None, context: str | None) -> Iterator[tuple[ApiClient, Any]]:
    """The cluster's API, and what is known of it; logs go to standard error as JSON."""
    import gc

    from kubernetes import client, config
    from kubernetes.config import ConfigException

    from presage.schedulers.kubernetes.api.cache import Cache
    from presage.serving.server.log import log_as_json

    try:
        settings = client.Configuration()
        config.load_config(
            config_file=None if kubeconfig is None else str(kubeconfig),
            context=context,
            client_configuration=settings,
        )
    except (ConfigException, OSError, TypeError, ValueError) as error:
        where = kubeconfig or "no cluster"
        raise ConfigError(
            f"{where}: {' '.join(str(error).split())}; name a kubeconfig by --kubeconfig, or run "
            "in a pod with a service account"
        ) from None
    log_as_json()
    with client.ApiClient(settings) as api, Cache(api) as cache:
        gc.collect()
        gc.freeze()  # a full collection over ten thousand pods takes a quarter of a second
        yield api, cache


def _until_told() -> threading.Event:
    """Set by SIGTERM or SIGINT."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def _gang(text: str) -> Policy:
    from presage.schedulers.policies.registry import policy_of

    found = policy_of(text, accepts=lambda needs: needs.plans_gangs)
    if not found.needs.plans_gangs:
        raise ConfigError(
            f"--policy {text}: it plans no gangs over several nodes (needs.plans_gangs); on "
            "Kubernetes use gang, or another policy that does"
        )
    return found


def _reading(resource: str, topology: list[str] | None) -> Reading:
    from presage.schedulers.core.topology import COSTS
    from presage.schedulers.kubernetes.fleet import LEVELS, Reading
    from presage.system.known_names import check_known

    if not topology:
        return Reading(resource, LEVELS)
    levels: dict[str, str] = {}
    for text in topology:
        level, _, label = text.partition("=")
        if not label or level in levels:
            raise ConfigError(f"--topology {text!r}: write LEVEL=LABEL, each level once")
        levels[level] = label
    outside = list(COSTS)[list(COSTS).index("node") + 1 :]
    check_known(levels, outside[:-1], "--topology ")
    return Reading(resource, {level: levels[level] for level in outside if level in levels})
