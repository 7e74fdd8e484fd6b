"""Options that name kinds of devices, or add some to the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.errors import UnknownDeviceError

if TYPE_CHECKING:
    from presage.features.device.device import Device


def add_devices(path: Path | None) -> Path | None:
    """Add the kinds of devices in a file to the catalogue, before the command runs."""
    if path is not None:
        from presage.features.device.device import load_device_file

        load_device_file(path)
    return path


DevicesFile = Annotated[
    Path | None,
    typer.Option(
        "--devices",
        metavar="FILE",
        callback=add_devices,
        is_eager=True,
        help="YAML file with additional kinds of devices. The variable PRESAGE_DEVICES names such "
        "a file too.",
    ),
]
DeviceKind = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        show_default="this machine's device",
        help="Kind of device, by any name that `presage devices` lists.",
    ),
]


def device_named(kind: str, option: str = "--device") -> Device:
    """Return the device of a kind in the catalogue.

    Raises
    ------
    UnknownDeviceError
        The catalogue has no such kind. The message names the option and the nearest kinds.
    """
    from presage.features.device.device import find_device

    try:
        return find_device(kind)
    except UnknownDeviceError as error:
        raise UnknownDeviceError(f"{option}: {error}") from error
