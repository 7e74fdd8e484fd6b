"""Options of ``presage kubernetes``, and the connection to the cluster."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli.scheduling.options import Predictor, Risk
from presage.errors import ConfigError
from presage.schedulers.live.forecast_source import live_forecaster

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from presage.schedulers.core.forecasts import Forecaster
    from presage.schedulers.core.policy import Policy
    from presage.schedulers.kubernetes.fleet import FleetOptions

_CLUSTER = "Cluster"
NVIDIA_GPU = "nvidia.com/gpu"

Resource = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Resource name by which pods request devices.",
        rich_help_panel=_CLUSTER,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningOptions:
    """Policy, and the source of its forecasts."""

    predictor: Predictor = "none"
    policy: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="NAME or MODULE:CLASS of a policy that plans gangs, with parameters, as in "
            "gang:alpha=2:near=rack.",
        ),
    ] = "gang"
    risk: Risk = 0.1
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token for the prediction server."),
    ] = None
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Certificate authority of the prediction server. The connection is then "
            "encrypted.",
        ),
    ] = None

    def forecaster(self) -> Callable[[], Forecaster]:
        """Return a function that makes a forecaster with an empty cache."""
        return live_forecaster(self.predictor, self.risk, self.token_file, self.ca)

    def gang_policy(self) -> Policy:
        """Return the policy.

        Raises
        ------
        ConfigError
            The policy or a parameter is unknown, or the policy plans no gangs, or has fair share.
        """
        from presage.schedulers.policies.policy_registry import policy_of

        found = policy_of(self.policy, accepts=lambda needs: needs.plans_gangs)
        if not found.needs.plans_gangs:
            raise ConfigError(
                f"--policy {self.policy}: it plans no gangs over several nodes "
                "(needs.plans_gangs); on Kubernetes use gang, or another policy that does"
            )
        if found.needs.fair_share_s:
            raise ConfigError(
                f"--policy {self.policy}: fair_share_s has no effect on Kubernetes, where the past "
                "use of users is not known; leave it out"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyOptions:
    """How devices and the network topology are named in the cluster."""

    resource: Resource = NVIDIA_GPU
    topology: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEVEL=LABEL",
            show_default="network.topology.nvidia.com/leaf for the rack, .../spine for the spine",
            help="Node label of a level of the network topology. Repeat for several levels.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None

    def fleet_options(self) -> FleetOptions:
        """Return the names of the device resource and of the topology labels.

        Raises
        ------
        ConfigError
            A level is unknown, given twice, or without a label.
        """
        from presage.schedulers.core.topology import COSTS
        from presage.schedulers.kubernetes.fleet import LEVELS, FleetOptions
        from presage.system.text.known_names import check_known

        if not self.topology:
            return FleetOptions(self.resource, LEVELS)
        levels: dict[str, str] = {}
        for text in self.topology:
            level, _, label = text.partition("=")
            if not label or level in levels:
                raise ConfigError(f"--topology {text!r}: write LEVEL=LABEL, each level once")
            levels[level] = label
        above_node = list(COSTS)[list(COSTS).index("node") + 1 :]
        check_known(levels, above_node[:-1], "--topology ")
        ordered = {level: levels[level] for level in above_node if level in levels}
        return FleetOptions(self.resource, ordered)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The Kubernetes cluster to connect to."""

    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="$KUBECONFIG, ~/.kube/config, or the pod's service account",
            help="Kubeconfig file of the cluster.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="the current context",
            help="Context in the kubeconfig file.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None

    @contextmanager
    def connected(self) -> Iterator[tuple[ApiClient, Any]]:
        """Yield the API of the cluster and a cache of its state; log to standard error as JSON.

        Raises
        ------
        ConfigError
            The kubeconfig file is missing or invalid.
        """
        import gc

        from kubernetes import client

        from presage.schedulers.kubernetes.api.cache import Cache
        from presage.serving.server.log import log_as_json

        settings = self._settings()
        log_as_json()
        with client.ApiClient(settings) as api, Cache(api) as cache:
            gc.collect()
            gc.freeze()  # a full collection over ten thousand pods takes a quarter of a second
            yield api, cache

    def _settings(self) -> Any:
        from kubernetes import client, config
        from kubernetes.config import ConfigException

        settings = client.Configuration()
        try:
            config.load_config(
                config_file=None if self.kubeconfig is None else str(self.kubeconfig),
                context=self.context,
                client_configuration=settings,
            )
        except (ConfigException, OSError, TypeError, ValueError) as error:
            where = self.kubeconfig or "no cluster"
            raise ConfigError(
                f"{where}: {' '.join(str(error).split())}; give --kubeconfig FILE, or run in a pod "
                "with a service account"
            ) from None
        return settings


def until_signal() -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping
