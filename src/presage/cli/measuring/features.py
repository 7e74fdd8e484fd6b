"""``presage features``: the operators and features of a model."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.options.devices import DeviceKind, DevicesFile, device_named
from presage.cli.options.job import JOB_FORMATS, Iterations, ModelOptions


@command(
    examples="""
    # Operators of an ONNX file, and its features on a V100
    presage features model.onnx --batch-size 64 --device v100

    # Save the features of a torch module, for predict --job job.json
    presage features my_package.models:resnet --json > job.json
    """
)
def features(
    job: Annotated[str, typer.Argument(metavar="JOB", help=JOB_FORMATS)],
    model: ModelOptions,
    iterations: Iterations = None,
    device: DeviceKind = "",
    devices: DevicesFile = None,
    feature_set: Annotated[
        str, typer.Option("--set", metavar="NAME", help="Feature set: published or full.")
    ] = "published",
    as_json: Json = False,
) -> None:
    """Show the operators of a model and the features computed from them.

    The job is not run, and no weights are allocated.
    """
    from presage.cli.output.job_features import print_features
    from presage.features.columns.schema import FEATURE_SETS
    from presage.features.device.local_device import detect

    if feature_set not in FEATURE_SETS:
        known = " or ".join(FEATURE_SETS)
        raise typer.BadParameter(f"{feature_set!r} is not {known}", param_hint="--set")
    read = model.read(job, iterations)
    on = device_named(device) if device else detect()
    print_features(read, on, feature_set, as_json=as_json)
