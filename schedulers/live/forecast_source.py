"""Who foretells for a live cluster, as the command line names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from presage.serving.client.credentials import read_credentials
from presage.system.address import check_address

if TYPE_CHECKING:
    from presage.schedulers.core.forecasts import Forecaster
    from presage.serving.client.client import PresageClient
    from presage.serving.client.credentials import Credentials

T = TypeVar("T")

TIMEOUT_S = 1.0  # of each question: others wait meanwhile

_OPTION = "--predictor"


def live_forecaster(
    text: str, risk: float, token_file: Path | None, ca: Path | None
) -> Callable[[], Forecaster]:
    """A forecaster that remembers nothing yet.

    ``text`` is HOST:PORT of a service, a release's folder, that of a campaign's tables, where each
    job is foretold what was measured of its model, or "none".

    Raises
    ------
    ConfigError, ReleaseError, ServiceError
        The risk, a file, the folder or the address is of no use.
    """
    from presage.schedulers.forecasters.no_forecasts import NoForecasts
    from presage.schedulers.forecasters.predicted import Predicted

    check_forecast(text, risk)
    credentials = read_credentials(token_file, ca)
    if text == "none":
        return NoForecasts
    if (Path(text) / "executions.parquet").is_file():
        from presage.schedulers.forecasters.forecast_table import Table
        from presage.schedulers.simulator.model_measurements import read_measurements

        measured = read_measurements(Path(text))
        return lambda: Table(measured)
    predictor = _predictor(text, credentials)
    return lambda: Predicted(predictor, risk=risk)


def check_forecast(text: str, risk: float) -> None:
    """They can be asked for; a folder is not read, nor is a service asked.

    Raises
    ------
    ConfigError
        The risk is none, or the text no folder that there is, and no address either.
    """
    from presage.schedulers.forecasters.predicted import check_risk

    check_risk(risk)
    if is_service(text):
        _check_service(text, _OPTION)


def is_service(text: str) -> bool:
    """Whether that is an address, and no folder."""
    return text != "none" and not Path(text).is_dir()


def service_of(text: str, option: str, credentials: Credentials) -> PresageClient:
    """The client of the service at HOST:PORT, which need not be up yet.

    Raises
    ------
    ConfigError
        It is no address; the error names the ``option`` that it was given by.
    """
    from presage.serving.client.client import PresageClient

    _check_service(text, option)
    return PresageClient(text, timeout_s=TIMEOUT_S, credentials=credentials)


def _check_service(text: str, option: str) -> None:
    named = f"{option} {text!r}"
    known = "none, a release folder, a folder of tables, or " if option == _OPTION else ""
    check_address(text, named, f"{named} is unknown; give {known}HOST:PORT of a prediction server")


def _predictor(text: str, credentials: Credentials) -> Any:
    """A release in this process, or the client of a service, which need not be up yet."""
    if Path(text).is_dir():
        from presage.serving.predictor.predictor import load_predictor

        return load_predictor(Path(text))
    return service_of(text, _OPTION, credentials)
