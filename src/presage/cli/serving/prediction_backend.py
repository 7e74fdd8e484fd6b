"""The release or server that ``presage predict`` uses, and the devices it knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from presage.cli.options.devices import device_named
from presage.cli.options.server import ServerOptions
from presage.errors import UnknownDeviceError

if TYPE_CHECKING:
    from presage.features.device.device import Device
    from presage.serving.predictor.prediction_backend import PredictionBackend


@contextmanager
def open_backend(server: ServerOptions, release: Path | None) -> Iterator[PredictionBackend]:
    """Yield a client of the server if one is named, else a release in this process.

    The default release is the one that `presage serve` would serve on this machine.
    """
    if server.server:
        with server.connected() as client:
            yield client
        return
    from presage.models.release.release import load_release
    from presage.serving.predictor.predictor import Predictor

    yield Predictor(load_release(release or _default_release()))


def device_of(backend: PredictionBackend, kind: str) -> Device:
    """Return a device as the backend knows it, else from the catalogue of this machine.

    A server does not know the kinds that a user adds: their data sheet is sent with the request.
    """
    if not kind:
        return _this_machine(backend)
    try:
        return backend.device(kind)
    except UnknownDeviceError:
        return device_named(kind)


def _this_machine(backend: PredictionBackend) -> Device:
    """Return this machine's device as the release calibrated it, else as detected."""
    from presage.features.device.local_device import detect

    here = detect()
    try:
        return backend.device(here.kind)
    except UnknownDeviceError:
        return here


def _default_release() -> Path:
    from presage.serving.main import default_source

    source = default_source()
    source.mark()
    return source.folder()
