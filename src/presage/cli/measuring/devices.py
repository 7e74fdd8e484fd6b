"""``presage devices``: the device catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.options.devices import DevicesFile, device_named
from presage.system.text.terminal import Table, box, print_table

if TYPE_CHECKING:
    from presage.features.device.device import Device

_TERA, _GIGA, _GIB = 1e12, 1e9, 2**30


@command(
    examples="""
    # All kinds
    presage devices

    # The kind of the GPU that nvidia-smi names
    presage devices "Tesla V100-SXM2-16GB"
    """
)
def devices(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME...]", help="Names of kinds to show, also as nvidia-smi prints them."
        ),
    ] = None,
    devices_file: DevicesFile = None,
    as_json: Json = False,
) -> None:
    """List the kinds of devices that Presage can predict for, with their data sheets."""
    from presage.cli.output.json_output import print_json
    from presage.features.device.device import catalogue

    del devices_file  # its callback has read it
    found = list(catalogue().values())
    if names:
        found = list({one.kind: one for one in (device_named(n, "NAME") for n in names)}.values())
    if as_json:
        print_json([_json_row(one) for one in found])
    else:
        print_table(_table(found))


def _json_row(one: Device) -> dict[str, Any]:
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

    title = "1 kind of device" if len(found) == 1 else f"{len(found)} kinds of devices"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("kind")
    for name in ("memory GiB", "cores", "CC", "fp32 TFLOP/s", "fp16 TFLOP/s", "GB/s"):
        table.add_column(name, justify="right")
    table.add_column("other names", max_width=60, overflow="fold")
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
