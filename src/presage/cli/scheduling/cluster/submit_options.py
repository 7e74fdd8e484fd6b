"""Options of ``presage cluster submit``: what a job needs, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli.options.job import JOB_FORMATS, ModelOptions
from presage.errors import ConfigError, InvalidJobError

if TYPE_CHECKING:
    from presage.serving.v1 import prediction_pb2 as serving_pb

_FORECAST, _DEVICES, _PROCESS = "Forecast", "Devices and order", "Process"
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print when the job would start and end; do not submit it."),
]
_MAX_INT32, _MAX_INT64 = 2**31 - 1, 2**63 - 1  # of the message's fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOptions:
    """The model of the job, from which its forecasts are made."""

    features: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help=f"Model of the job: {JOB_FORMATS} Without it, the job gets exclusive devices.",
            rich_help_panel=_FORECAST,
        ),
    ] = None
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Name of the model in measured tables, for a controller that uses such tables.",
            rich_help_panel=_FORECAST,
        ),
    ] = ""
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Training steps of the job. Required with --features, except for a JSON file.",
            rich_help_panel=_FORECAST,
        ),
    ] = None

    def message(self, options: ModelOptions) -> serving_pb.Job | None:
        """Return the features of the job, or None without --features.

        Raises
        ------
        ConfigError
            An option is given without the one that it belongs to.
        """
        if self.features is None:
            if options.batch_size or options.optimizer or options.precision or options.dim:
                raise ConfigError(
                    "--batch-size, --optimizer, --precision and --dim need --features; give it too"
                )
            return None
        if self.iterations is None and not self.features.endswith(".json"):
            raise ConfigError(
                f"--features {self.features}: the number of training steps is unknown, and the "
                "run time depends on it; give --iterations"
            )
        from presage.serving.codec.wire_values import write_job

        return write_job(options.read(self.features, self.iterations))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOptions:
    """Devices that the job needs, and its place in the queue."""

    latency_sensitive: Annotated[
        bool,
        typer.Option(
            "--latency-sensitive",
            help="Start the job before best-effort jobs, and protect its run time.",
            rich_help_panel=_DEVICES,
        ),
    ] = False
    priority: Annotated[
        int,
        typer.Option(
            help="Priority within its class; higher starts first.", rich_help_panel=_DEVICES
        ),
    ] = 0
    gpus: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of devices, all on one node unless the job is elastic.",
            rich_help_panel=_DEVICES,
        ),
    ] = 1
    min_gpus: Annotated[
        int,
        typer.Option(
            min=0,
            show_default="as --gpus",
            help="Smallest number of devices of an elastic job, whose script uses "
            "presage.training.elastic. It has a worker on each device, on any nodes.",
            rich_help_panel=_DEVICES,
        ),
    ] = 0
    max_gpus: Annotated[
        int,
        typer.Option(
            min=0,
            show_default="as --gpus",
            help="Largest number of devices of an elastic job.",
            rich_help_panel=_DEVICES,
        ),
    ] = 0
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            show_default="any kind",
            help="Accepted kind of device. Repeat for several kinds.",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    share: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=1.0,
            help="Share of each device, for the policy bin-packing.",
            rich_help_panel=_DEVICES,
        ),
    ] = 1.0
    memory_gib: Annotated[
        float,
        typer.Option(
            min=0.0,
            show_default="in proportion to --share",
            help="Memory on each device, for the policy bin-packing.",
            rich_help_panel=_DEVICES,
        ),
    ] = 0.0

    def fields(self) -> dict[str, Any]:
        """Return the fields of the job's message.

        Raises
        ------
        InvalidJobError
            A number does not fit its field.
        """
        _check_ranges({
            "--priority": (self.priority, _MAX_INT32),
            "--gpus": (self.gpus, _MAX_INT32),
            "--min-gpus": (self.min_gpus, _MAX_INT32),
            "--max-gpus": (self.max_gpus, _MAX_INT32),
            "--share": (self.share, 1),
            "--memory-gib": (self.memory_gib, _MAX_INT64 >> 30),
        })  # fmt: skip
        return {
            "latency_sensitive": self.latency_sensitive,
            "priority": self.priority,
            "gpus": self.gpus,
            "min_gpus": self.min_gpus,
            "max_gpus": self.max_gpus,
            "kinds": self.kinds or (),
            "compute_milli": round(1000 * self.share),
            "memory_bytes": round(self.memory_gib * 2**30),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """How the job's process runs."""

    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="the current folder",
            help="Working folder of the job.",
            rich_help_panel=_PROCESS,
        ),
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable to pass on with its value here. Repeat for several.",
            rich_help_panel=_PROCESS,
        ),
    ] = None
    env_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of environment variables, NAME=VALUE per line.",
            rich_help_panel=_PROCESS,
        ),
    ] = None
    checkpoint_every_s: Annotated[
        float,
        typer.Option(
            min=0.0,
            show_default="0, no checkpoints",
            help="Seconds between the checkpoints that the job writes itself.",
            rich_help_panel=_PROCESS,
        ),
    ] = 0.0
    grace_s: Annotated[
        float,
        typer.Option(
            min=0.001,
            help="Seconds that the job may take to save its state when it is preempted.",
            rich_help_panel=_PROCESS,
        ),
    ] = 30.0
    retries: Annotated[
        int,
        typer.Option(
            min=0, help="Number of restarts after the job failed.", rich_help_panel=_PROCESS
        ),
    ] = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields of the job's message.

        Raises
        ------
        InvalidJobError
            A number does not fit its field.
        ConfigError
            A variable is not set, or --env-file cannot be read.
        """
        from presage.cli.scheduling.cluster.variables import job_variables

        _check_ranges({"--retries": (self.retries, _MAX_INT32)})
        return {
            "folder": str((self.folder or Path()).resolve()),
            "environment": job_variables(self.env or (), self.env_file),
            "checkpoint_interval_s": self.checkpoint_every_s,
            "grace_s": self.grace_s,
            "retries": self.retries,
        }


def check_command(command: Sequence[str]) -> None:
    """Raise an InvalidJobError for a job without a command."""
    if not command:
        raise InvalidJobError("no command; write it after the options: -- python train.py")


def check_iterations(iterations: int | None) -> None:
    """Raise an InvalidJobError for a number that does not fit its field."""
    _check_ranges({"--iterations": (iterations or 0, _MAX_INT64)})


def _check_ranges(options: Mapping[str, tuple[float, int]]) -> None:
    for option, (value, most) in options.items():
        if not -most <= value <= most:  # also rejects NaN
            raise InvalidJobError(f"{option} {value}: must be a number of at most {most:,}")
