"""Forecasters of a live cluster, by the source that is named on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from presage.serving.client.credentials import read_credentials
from presage.system.text.address import check_address

if TYPE_CHECKING:
    from presage.schedulers.core.forecasts import Forecaster
    from presage.serving.client.client import PresageClient
    from presage.serving.client.credentials import Credentials

T = TypeVar("T")

TIMEOUT_S = 1.0  # per request: scheduling waits for it

_OPTION = "--predictor"


def live_forecaster(
    text: str, risk: float, token_file: Path | None, ca: Path | None
) -> Callable[[], Forecaster]:
    """Return a function that makes a forecaster with an empty cache.

    Parameters
    ----------
    text : str
        HOST:PORT of a prediction service, the folder of a release, the folder of a campaign's
        tables (predicts what was measured for the job's model), or "none".

    Raises
    ------
    ConfigError, ReleaseError, ServiceError
        The risk, a file, the folder or the address is not valid.
    """
    from presage.schedulers.forecasters.no_forecasts import NoForecasts
    from presage.schedulers.forecasters.predicted import Predicted

    check_forecast_source(text, risk)
    credentials = read_credentials(token_file, ca)
    if text == "none":
        return NoForecasts
    if (Path(text) / "executions.parquet").is_file():
        from presage.schedulers.forecasters.forecast_table import Table
        from presage.schedulers.simulator.ground_truth.model_measurements import read_measurements

        measured = read_measurements(Path(text))
        return lambda: Table(measured)
    predictor = _predictor(text, credentials)
    return lambda: Predicted(predictor, risk=risk)


def check_forecast_source(text: str, risk: float) -> None:
    """Check the settings, without reading a folder or connecting to a service.

    Raises
    ------
    ConfigError
        The risk is not valid, or the text is neither an existing folder nor an address.
    """
    from presage.schedulers.forecasters.predicted import check_risk

    check_risk(risk)
    if is_service_address(text):
        _check_service(text, _OPTION)


def is_service_address(text: str) -> bool:
    """Return whether a source is an address, and not a folder."""
    return text != "none" and not Path(text).is_dir()


def make_service_client(text: str, option: str, credentials: Credentials) -> PresageClient:
    """Return a client of the service at HOST:PORT, which need not be running yet.

    Raises
    ------
    ConfigError
        It is not an address; the error names the ``option``.
    """
    from presage.serving.client.client import PresageClient

    _check_service(text, option)
    return PresageClient(text, timeout_s=TIMEOUT_S, credentials=credentials)


def _check_service(text: str, option: str) -> None:
    named = f"{option} {text!r}"
    others = "none, a release folder, a folder of tables, or " if option == _OPTION else ""
    check_address(text, named, f"{named} is unknown; give {others}HOST:PORT of a prediction server")


def _predictor(text: str, credentials: Credentials) -> Any:
    """Return a predictor: a release in this process, or the client of a service."""
    if Path(text).is_dir():
        from presage.serving.predictor.predictor import load_predictor

        return load_predictor(Path(text))
    return make_service_client(text, _OPTION, credentials)
