"""Who foretells for a live cluster, as the command line names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from presage.schedulers.forecasts import Forecaster
    from presage.serving.client import PresageClient


def live_forecaster(
    text: str, risk: float, token_file: Path | None, ca: Path | None
) -> Callable[[], Forecaster]:
    """A forecaster that remembers nothing yet.

    ``text`` is HOST:PORT of a service, a release's folder, that of a campaign's tables, where each
    job is foretold what was measured of its model, or "none".

    Raises
    ------
    ConfigError, ReleaseError, ServiceError
        The risk, the folder or the address is of no use.
    """
    from presage.schedulers.forecasters.no_forecasts import NoForecasts
    from presage.schedulers.forecasters.predicted import Predicted

    if text == "none":
        return NoForecasts
    if (Path(text) / "executions.parquet").is_file():
        from presage.measured_models import read_measurements
        from presage.schedulers.forecasters.table import Table

        measured = read_measurements(Path(text))
        return lambda: Table(measured)
    predictor = _predictor(text, token_file, ca)
    Predicted(predictor, risk=risk)  # a risk of no use is better known now
    return lambda: Predicted(predictor, risk=risk)


def is_service(text: str) -> bool:
    """Whether that is an address, and no folder."""
    return text != "none" and not Path(text).is_dir()


def _predictor(text: str, token_file: Path | None, ca: Path | None) -> Any:
    """A release in this process, or the client of a service, which need not be up yet."""
    if Path(text).is_dir():
        from presage.models.release import load_release
        from presage.serving.predictor import Predictor

        return Predictor(load_release(Path(text)))
    return service_of(text, token_file, ca)


def service_of(text: str, token_file: Path | None, ca: Path | None) -> PresageClient:
    """The client of the service at HOST:PORT, which need not be up yet.

    Raises
    ------
    ConfigError
        It is no address.
    """
    from presage.scenario import client_of
    from presage.serving.channel import Credentials

    token = "" if token_file is None else token_file.read_text().strip()
    return client_of(text, timeout_s=1.0, credentials=Credentials(token=token, ca=ca))
