"""``presage inc forecast``: forecast of a job's step time as settings of the torch backend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.options.devices import DeviceKind, DevicesFile
from presage.cli.options.job import JOB_FORMATS, ModelOptions
from presage.cli.options.server import ServerOptions
from presage.system.text.terminal import say

if TYPE_CHECKING:
    from presage.collectives.phases.prior import Prior
    from presage.features.forecast import Forecast
    from presage.features.job.job_description import JobFeatures
    from presage.features.scaling.scaling_request import GpuPlacement

_Size = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Devices of the job, one for each rank: GPUS or GPUSxNODES. --batch-size is that of "
        "each.",
    ),
]
_Release = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        show_default="the release that `presage serve` serves",
        help="Release folder to predict with, without --server.",
    ),
]


@command(
    examples="""
    # Settings of a job on 8 devices of 2 nodes; `. ./forecast.sh` sets them
    presage inc forecast --job model.onnx --device a100 --gpus 8x2 > forecast.sh
    presage inc forecast --job model.onnx --gpus 8x2 --server 10.0.0.1:50051
    """
)
def forecast(
    job: Annotated[str, typer.Option(metavar="JOB", help=JOB_FORMATS)],
    *,
    gpus: _Size,
    device: DeviceKind = "",
    model: ModelOptions,
    server: ServerOptions,
    release: _Release = None,
    devices: DevicesFile = None,
    as_json: Json = False,
) -> None:
    """Print the predicted step time and the gradient bytes of a job as environment variables.

    The backend presage_inc reads them. The arbiter predicts the first AllReduces of the job by the
    forecast, until it is replaced by what was observed.
    """
    from presage.cli.output.json_output import print_json
    from presage.cli.serving.prediction_backend import device_of, open_backend
    from presage.features.scaling.scaling_request import ScalingRequest

    features, size = model.read(job, None), _read_size(gpus)
    with open_backend(server, release) as backend:
        request = ScalingRequest(features, device_of(backend, device), (size,), size)
        step = backend.predict_scaling(request).forecasts[0].step_time_s
    variables = _variables(_prior(features, step))
    if as_json:
        print_json(variables)
        return
    for name, text in variables.items():
        say(f"export {name}={text}")


def _read_size(text: str) -> GpuPlacement:
    from presage.cli.serving.sizes import read_size
    from presage.errors import ConfigError

    size = read_size(text, "--gpus")
    if size.gpus < 2:
        raise ConfigError(f"--gpus {text}: a job of one rank uses no switch; give at least 2")
    return size


def _prior(features: JobFeatures, step: Forecast) -> Prior:
    """Return the forecast as the backend reads it; warn if it is of little use.

    Raises
    ------
    InvalidJobError
        The job has no gradients.
    ServiceError
        The forecast is not finite and positive.
    """
    from presage.collectives.phases.prior import Prior
    from presage.errors import InvalidJobError, ServiceError
    from presage.features.job.job_description import FP32_BYTES

    name, size_bytes = features.job.name, FP32_BYTES * features.parameters
    if not features.trains or size_bytes < 1:
        raise InvalidJobError(f"job {name!r} trains no parameters, so it has no gradients to sum")
    try:
        prior = Prior(step.median, size_bytes, (step.low, step.high))
    except ValueError as error:
        raise ServiceError(
            f"no forecast of job {name!r} can be used ({error.args[0].partition(';')[0]}); start "
            "the job without one"
        ) from error
    _warn(prior, step)
    return prior


def _warn(prior: Prior, step: Forecast) -> None:
    if not prior.can_predict:
        say(
            "warning: the interval is as wide as the step time; arrivals count as soon until they "
            "are learnt", err=True,
        )  # fmt: skip
    if not step.in_domain:
        say("warning: the job or its device is unlike the training data", err=True)


def _variables(prior: Prior) -> dict[str, str]:
    assert prior.step_time_interval_s is not None
    low, high = prior.step_time_interval_s
    return {
        "PRESAGE_INC_STEP_TIME_S": f"{prior.step_time_s:.6g}",
        "PRESAGE_INC_STEP_TIME_INTERVAL_S": f"{low:.6g},{high:.6g}",
        "PRESAGE_INC_GRADIENT_BYTES": str(prior.gradient_bytes),
    }
