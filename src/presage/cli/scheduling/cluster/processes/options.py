"""Options of a live cluster's processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli.scheduling.options import Predictor, Risk
from presage.errors import ConfigError
from presage.schedulers.live.forecast_source import live_forecaster
from presage.serving.client.credentials import read_credentials

if TYPE_CHECKING:
    from presage.schedulers.core.forecasts import Forecaster
    from presage.schedulers.v1 import cluster_pb2 as pb
    from presage.serving.client.credentials import Credentials

KUBERNETES_POLICY = "gang"
_PREDICTIONS = "Predictions"

Policy = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Scheduling policy: sharing, with parameters, as in sharing:check_s=10, or any policy "
        "of `presage simulate` except gang.",
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
    """Return the policy of the controller, and the sharing rules that agents follow.

    Raises
    ------
    ConfigError
        The policy or a parameter is unknown, or the policy is for Kubernetes only.
    """
    from presage.schedulers.policies.registry import POLICIES, policy_of
    from presage.schedulers.policies.sharing.policy import Sharing
    from presage.schedulers.v1 import cluster_pb2 as pb
    from presage.system.known_names import check_known

    name = text.partition(":")[0]
    if name == KUBERNETES_POLICY:
        raise ConfigError(
            "--policy gang: gangs over several nodes run on Kubernetes (presage kubernetes); a job "
            "here runs on one node"
        )
    check_known([name], [known for known in POLICIES if known != KUBERNETES_POLICY], "--policy ")
    found = policy_of(text)
    if not isinstance(found, Sharing):
        return found, None
    settings = found.settings
    return found.of_controller(), pb.Sharing(
        step_milli=settings.step_milli,
        least_milli=settings.least_milli,
        check_s=settings.check_s,
        overcommit=settings.overcommit,
        reserve=settings.reserve,
    )
