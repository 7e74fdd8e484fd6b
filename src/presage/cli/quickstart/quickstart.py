"""``presage quickstart``: forecasts of a model on several devices, served, as table and picture."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.job import JOB_FORMATS, Iterations, ModelOptions

if TYPE_CHECKING:
    from presage.cli.quickstart.device_forecasts import DeviceForecast
    from presage.features.device.device import Device
    from presage.features.job.job_description import JobFeatures
    from presage.serving.client.client import PresageClient

EXAMPLE = "resnet/50-s224/b32/sgd"


@command(
    examples="""
    # With a ResNet-50
    presage quickstart

    # With a model of your own, on two kinds of GPUs
    presage quickstart --job my.models:classifier --device a100 --device t4
    """
)
def quickstart(
    job: Annotated[
        str, typer.Option(metavar="JOB", help=JOB_FORMATS, show_default="a ResNet-50")
    ] = EXAMPLE,
    *,
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Kind of device; repeat for several.",
            show_default="this machine's and those that the release was trained on",
        ),
    ] = None,
    model: ModelOptions,
    iterations: Iterations = None,
    output: Annotated[Path, typer.Option(metavar="FILE.html", help="Page to write.")] = Path(
        "presage_quickstart.html"
    ),
) -> None:
    """Start a prediction server, and compare devices for a model by its forecasts.

    The server ends with the command. Other commands to try are printed at the end.
    """
    from presage.cli.quickstart.device_forecasts import device_forecasts
    from presage.cli.quickstart.local_server import local_server
    from presage.errors import ConfigError
    from presage.serving.client.client import PresageClient
    from presage.system.text.terminal import say

    if output.is_dir() or not output.parent.is_dir():
        raise ConfigError(f"--output {output}: name a file in an existing folder")
    say(f"reading {job} ...", err=True)
    features = model.read(job, iterations)
    say("starting a prediction server ...", err=True)
    with local_server() as target, PresageClient(target) as client:
        found = device_forecasts(client, features, _devices(client, device or ()))
    _print(features, found)
    _write_page(output, features, found)
    _say_next(job, output)


def _devices(client: PresageClient, kinds: Sequence[str]) -> list[Device]:
    """Return the named devices; without names, this machine's and those of the training data."""
    from presage.cli.serving.prediction_backend import device_of

    info = client.release()
    named = kinds or ("", *sorted(info.trained_devices))
    found = [device_of(client, kind) for kind in named]
    return list({one.kind: one for one in found}.values())


def _print(job: JobFeatures, found: Sequence[DeviceForecast]) -> None:
    from presage.system.text import units
    from presage.system.text.terminal import Table, print_table, say
    from presage.system.text.units import quantity

    first = found[0].forecast.step_time_s
    table = Table(title=f"{_title(job)}, by release {first.release_id}")
    table.add_column("device")
    for name in ("step time", f"{first.coverage:.0%} interval", "run time", "memory up to", "fits"):
        table.add_column(name, justify="right")
    for one in found:
        step, memory = one.forecast.step_time_s, one.forecast.memory_bytes
        table.add_row(
            one.device.kind,
            quantity(step.median, step.unit),
            units.interval(step.low, step.high, step.unit),
            quantity(one.forecast.runtime_s.median, "seconds"),
            quantity(memory.high, memory.unit),
            "yes" if one.fits else "no",
        )
    print_table(table)
    for name, field in (("step time", "step_time_s"), ("memory", "memory_bytes")):
        outside = [one.device.kind for one in found if not one.forecast.by_field()[field].in_domain]
        if outside:
            where = "all of them" if len(outside) == len(found) else ", ".join(outside)
            say(f"{name} is out of domain on {where}: its interval has no guarantee")


def _write_page(output: Path, job: JobFeatures, found: Sequence[DeviceForecast]) -> None:
    from presage.cli.quickstart.forecast_page import forecast_page
    from presage.system.files.atomic_file import replace_text

    facts = {
        "job": _title(job),
        "steps": f"{job.job.iterations:,}",
        "release": found[0].forecast.step_time_s.release_id,
    }
    replace_text(output, forecast_page(f"Forecasts of {job.job.name}", facts, found))


def _say_next(job: str, output: Path) -> None:
    from presage.system.text.terminal import say

    for line in (
        f"chart: {output}",
        "next:",
        "  presage serve                          # the same server, on port 50051",
        f"  presage predict --server localhost:50051 --job {shlex.quote(job)}",
        "  presage profile --anchor               # measure this machine, two minutes a precision",
        "  presage simulate --help                # compare schedulers that use forecasts",
    ):
        say(line)


def _title(job: JobFeatures) -> str:
    return f"{job.job.name}, batch {job.job.batch_size}"
