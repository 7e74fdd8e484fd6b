"""Options of ``presage predict`` that describe how a job loads its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from presage.features.device.device import Device
    from presage.features.job.data_loading import DataLoading, LoadingForecast
    from presage.features.job.job_description import JobFeatures
    from presage.serving.predictor.prediction_backend import JobForecast

_MAX_WORKERS = 4096  # MAX_WORKERS of data_loading.py, which --help does not import


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingOptions:
    """How a job loads its samples. None means "not given"."""

    sample_load_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="Predict data stalls: time in which one process loads, transforms and collates a "
            "sample.",
        ),
    ] = None
    sample_cpu_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            show_default="all of it",
            help="Part of --sample-load-ms that occupies a core, and does not wait for storage.",
        ),
    ] = None
    loader_workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=_MAX_WORKERS,
            show_default="0: the training process loads",
            help="Worker processes of the DataLoader.",
        ),
    ] = None
    hand_over_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            show_default="0 on a GPU, by its size on a processor",
            help="Time in which the training process takes over a batch of a worker.",
        ),
    ] = None
    host_cores: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="no limit, or those of a processor",
            help="Cores of the host for the workers and the training process of a GPU's job.",
        ),
    ] = None

    def check(self, *, has_solo_forecasts: bool) -> None:
        """Check that the options fit together.

        Raises
        ------
        ConfigError
            The time of a sample is missing, or no solo job is predicted.
        """
        from presage.errors import ConfigError

        if self.sample_load_ms is None:
            if any(value is not None for value in astuple(self)):
                raise ConfigError(
                    "--sample-cpu-ms, --loader-workers, --hand-over-ms and --host-cores describe "
                    "data loading; add --sample-load-ms, the time to load one sample"
                )
        elif not has_solo_forecasts:
            raise ConfigError(
                "--sample-load-ms predicts data stalls of jobs that run solo on one device; "
                "omit --colocated and --scaling"
            )

    def forecasts(
        self, jobs: Sequence[JobFeatures], answers: Sequence[JobForecast], device: Device
    ) -> list[LoadingForecast]:
        """Return the forecast with loading of each job; empty if loading is not described."""
        if self.sample_load_ms is None:
            return []
        from presage.features.job.data_loading import forecast_loading

        return [
            forecast_loading(
                self._loading(job, answer, device),
                answer.step_time_s, answer.runtime_s, job.job.iterations,
            )
            for job, answer in zip(jobs, answers, strict=True)
        ]  # fmt: skip

    def _loading(self, job: JobFeatures, answer: JobForecast, device: Device) -> DataLoading:
        from presage.errors import ConfigError
        from presage.features.device.device_class import PROCESSOR, device_class
        from presage.features.job.data_loading import DataLoading, processor_hand_over_s

        if job.job.loads_data:
            raise ConfigError(
                f"--sample-load-ms: the predicted step of {job.job.name!r} includes loading; set "
                "loads_data to false in its JSON file"
            )
        loading = DataLoading(
            sample_s=(self.sample_load_ms or 0.0) / 1000,
            sample_cpu_s=_seconds(self.sample_cpu_ms),
            workers=self.loader_workers or 0,
            batch_size=job.job.batch_size,
            hand_over_s=_seconds(self.hand_over_ms) or 0.0,
            host_cores=float(self.host_cores or "inf"),
        )
        if device_class(device) != PROCESSOR:
            return loading
        if self.host_cores is not None:
            raise ConfigError(f"--host-cores is for GPUs; {device.kind} has {device.cores} cores")
        if self.hand_over_ms is None:
            copy_s = processor_hand_over_s(job.memory.batch_bytes)
            loading = replace(loading, hand_over_s=copy_s)
        busy = min(answer.compute_utilization.median, 1.0) * device.cores
        return replace(loading, host_cores=float(device.cores), step_cores=busy)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
