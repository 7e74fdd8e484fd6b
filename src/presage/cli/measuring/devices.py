"""``presage devices``, and the option that adds kinds of devices to the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.errors import UnknownDeviceError
from presage.system.terminal import Table, show_whole

if TYPE_CHECKING:
    from presage.features.device.device import Device

_TERA, _GIGA, _GIB = 1e12, 1e9, 2**30


def add_devices(path: Path | None) -> Path | None:
    """Add the kinds in a file, before the command runs."""
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
        help="YAML file of further kinds of devices (docs/devices.md); or set PRESAGE_DEVICES.",
    ),
]


def device_named(kind: str, option: str = "--device") -> Device:
    """Return the device of a kind in the catalogue.

    Raises
    ------
    UnknownDeviceError
        There is none; names the option, the value and the nearest kinds.
    """
    from presage.features.device.device import find_device

    try:
        return find_device(kind)
    except UnknownDeviceError as error:
        raise UnknownDeviceError(f"{option}: {error}") from error


def devices(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME...]", help="These kinds alone, by any name, such as nvidia-smi's."
        ),
    ] = None,
    devices_file: DevicesFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List the kinds of devices that predictions can be asked for, with their data sheets."""
    from presage.cli.render import print_json
    from presage.features.device.device import catalogue

    del devices_file  # added by its callback
    found = list(catalogue().values())
    if names:
        found = list({one.kind: one for one in (device_named(n, "NAME") for n in names)}.values())
    if as_json:
        print_json([_row(one) for one in found])
    else:
        show_whole(_table(found))


def _row(one: Device) -> dict[str, Any]:
    from presage.features.device.device import device_aliases

    return {
        "kind": one.kind,
        "names": list(device_aliases(one.kind)),
        "compute_capability": one.compute_capability,
        "memory_bytes": one.memory_bytes,
        "cores": one.cores,
        "peak_flops_per_s": dict(one.peak_flops_per_s),
        "memory_bandwidth_bytes_per_s": one.memory_bandwidth_bytes_per_s,
        "op_overhead_s": one.op_overhead_s,
        "context_bytes": one.context_bytes,
    }


def _table(found: list[Device]) -> Table:
    from presage.features.device.device import device_aliases

    table = Table(title="1 kind of device" if len(found) == 1 else f"{len(found)} kinds of devices")
    numbers = ("memory GiB", "cores", "capability", "fp32 TFLOP/s", "fp16 TFLOP/s", "GB/s")
    table.add_column("kind")
    for name in numbers:
        table.add_column(name, justify="right")
    table.add_column("also called", max_width=60, overflow="fold")
    for one in found:
        fp16 = one.peak_flops_per_s.get("fp16")
        table.add_row(
            one.kind,
            f"{one.memory_bytes / _GIB:,.0f}",
            f"{one.cores:,}",
            f"{one.compute_capability:g}" if one.compute_capability else "-",
            f"{one.peak_flops_per_s['fp32'] / _TERA:,.3g}",
            "-" if fp16 is None else f"{fp16 / _TERA:,.4g}",
            f"{one.memory_bandwidth_bytes_per_s / _GIGA:,.0f}",
            ", ".join(device_aliases(one.kind)),
        )
    return table
