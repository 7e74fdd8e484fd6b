"""``presage predict``: forecasts of jobs on a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.options.devices import DeviceKind, DevicesFile
from presage.cli.options.job import JOB_FORMATS, Iterations, ModelOptions
from presage.cli.options.server import ServerOptions
from presage.cli.serving.loading_options import LoadingOptions

if TYPE_CHECKING:
    from presage.features.device.device import Device
    from presage.features.job.job_description import JobFeatures
    from presage.serving.predictor.prediction_backend import PredictionBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOptions:
    """Which forecast is made, and how it is printed."""

    colocated: Annotated[
        bool,
        typer.Option(
            "--colocated", help="Predict the slowdown of each job when all share the device."
        ),
    ] = False
    scaling: Annotated[
        str,
        typer.Option(
            metavar="SIZES",
            help="Predict the step time on several GPUs: GPUS or GPUSxNODES, separated by commas.",
        ),
    ] = ""
    requested: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Size to which the speed-ups of --scaling refer."),
    ] = "1"
    measured: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE=SECONDS",
            help="Measured step time of the job at a size, for --scaling. Repeat for several.",
        ),
    ] = None
    coverage: Annotated[
        float, typer.Option(help="Coverage of the prediction interval: 0.8 or 0.9.")
    ] = 0.8

    def print_from(
        self,
        backend: PredictionBackend,
        jobs: list[JobFeatures],
        device: Device,
        loading: LoadingOptions,
        *,
        as_json: bool,
    ) -> None:
        """Predict jobs on a device, and print the forecasts."""
        if self.scaling:
            self._print_scaling(backend, jobs, device, as_json=as_json)
            return
        from presage.cli.output.forecasts import print_colocation, print_forecasts
        from presage.features.colocation import Colocation
        from presage.features.device.device import Share
        from presage.features.placement import Placement

        if self.colocated:
            shares = (Share(mode="time-slice"),) * len(jobs)
            colocation = Colocation(device, tuple(jobs), shares)
            answer = backend.predict_interference([colocation], coverage=self.coverage)[0]
            print_colocation(jobs, answer, device, as_json=as_json)
        else:
            placements = [Placement(job, device) for job in jobs]
            answers = backend.predict(placements, coverage=self.coverage)
            loaded = loading.forecasts(jobs, answers, device)
            print_forecasts(jobs, answers, device, loaded, as_json=as_json)

    def _print_scaling(
        self, backend: PredictionBackend, jobs: list[JobFeatures], device: Device, *, as_json: bool
    ) -> None:
        from presage.cli.output.scaling import print_scaling
        from presage.cli.serving.sizes import read_measured, read_size, read_sizes
        from presage.errors import ConfigError
        from presage.features.scaling.scaling_request import ScalingRequest

        if len(jobs) > 1 or self.colocated:
            raise ConfigError("--scaling predicts one job that shares no GPU; give one --job")
        request = ScalingRequest(
            jobs[0],
            device,
            read_sizes(self.scaling),
            read_size(self.requested, "--requested"),
            tuple(map(read_measured, self.measured or ())),
        )
        answer = backend.predict_scaling(request, coverage=self.coverage)
        print_scaling(request, answer, as_json=as_json)


@command(
    examples="""
    # Utilization, memory, step time and run time of an ONNX model on an A100
    presage predict --job model.onnx --batch-size 64 --device a100

    # Slowdown of two jobs that share this machine's device
    presage predict --job a.onnx --job b.onnx --colocated

    # Step time on 2 GPUs, and on 8 of two nodes, after 4 were measured
    presage predict --job a.onnx --device t4 --scaling 2,8x2 --measured 4=0.31

    # Time that each step waits for samples, which 4 workers load in 3 ms each
    presage predict --job a.onnx --sample-load-ms 3 --loader-workers 4
    """
)
def predict(
    job: Annotated[
        list[str], typer.Option(metavar="JOB", help=f"{JOB_FORMATS} Repeat for several jobs.")
    ],
    *,
    device: DeviceKind = "",
    model: ModelOptions,
    iterations: Iterations = None,
    forecast: ForecastOptions,
    loading: LoadingOptions,
    server: ServerOptions,
    release: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="the release that `presage serve` serves",
            help="Release folder to predict with, without --server.",
        ),
    ] = None,
    devices: DevicesFile = None,
    as_json: Json = False,
) -> None:
    """Predict the utilization, memory, step time and run time of jobs on a device.

    With --colocated, predict how much the jobs slow each other down on one device. With --scaling,
    predict the step time of a job on several GPUs. With --sample-load-ms, predict also how long
    each step waits for its samples. Without --server the release is loaded into this process.
    """
    from presage.cli.serving.prediction_backend import device_of, open_backend

    loading.check(has_solo_forecasts=not (forecast.colocated or forecast.scaling))
    with open_backend(server, release) as backend:
        known = device_of(backend, device)  # before the jobs, whose models may take long to trace
        jobs = [model.read(source, iterations) for source in job]
        forecast.print_from(backend, jobs, known, loading, as_json=as_json)
