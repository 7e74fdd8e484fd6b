"""Options of a live cluster's processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli.scheduling.options import Predictor, Risk
from presage.cli.scheduling.policy_list import policy_list
from presage.errors import ConfigError
from presage.schedulers.live.forecast_source import live_forecaster
from presage.serving.client.credentials import read_credentials

if TYPE_CHECKING:
    from presage.schedulers.core.forecasts import Forecaster
    from presage.schedulers.v1 import cluster_pb2 as pb
    from presage.serving.client.credentials import Credentials

_PREDICTIONS = "Predictions"

Policy = Annotated[
    str,
    typer.Option(
        metavar="POLICY",
        help="NAME or MODULE:CLASS of a policy, with parameters, as in sharing:check_s=10. "
        f"Policies: {policy_list()}; not those that plan gangs over several nodes.",
    ),
]
HardShares = Annotated[
    bool,
    typer.Option(
        "--hard-shares",
        help="Limit each job to its share. Otherwise it may use compute that co-located jobs leave "
        "idle.",
    ),
]
Lease = Annotated[
    float,
    typer.Option(min=2.0, help="Seconds for which jobs keep running without a controller."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorOptions:
    """Source of the forecasts, and credentials for a prediction server."""

    predictor: Predictor = "none"
    risk: Risk = 0.1
    predictor_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token for the prediction server.",
            rich_help_panel=_PREDICTIONS,
        ),
    ] = None
    predictor_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Certificate authority of the prediction server. The connection is then "
            "encrypted.",
            rich_help_panel=_PREDICTIONS,
        ),
    ] = None

    def credentials(self) -> Credentials:
        """Read the token and the certificate authority."""
        return read_credentials(self.predictor_token_file, self.predictor_ca)

    def forecaster(self) -> Callable[[], Forecaster]:
        """Return a function that makes a forecaster with an empty cache."""
        return live_forecaster(
            self.predictor, self.risk, self.predictor_token_file, self.predictor_ca
        )


def policy_named(text: str) -> tuple[Any, pb.Sharing | None]:
    """Return the policy of the controller, and settings for agents that rebalance jobs.

    Raises
    ------
    ConfigError
        The policy or a parameter is unknown, or the policy cannot run on a live cluster.
    """
    from presage.schedulers.policies.policy_registry import policy_of
    from presage.schedulers.v1 import cluster_pb2 as pb

    found = policy_of(text, accepts=lambda needs: not needs.plans_gangs)
    if found.needs.plans_gangs:
        raise ConfigError(
            f"--policy {text}: gangs over several nodes run on Kubernetes (presage kubernetes); a "
            "job here runs on one node"
        )
    settings = found.agent_settings
    if settings is None and found.needs.resizes:
        raise ConfigError(
            f"--policy {text}: it resizes, moves or pauses running jobs, which node agents do only "
            "by settings of their own; declare agent_settings"
        )
    sharing = None if settings is None else pb.Sharing(**settings._asdict())
    return found.controller_policy(), sharing
