"""``presage slurm sbatch``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.job import JOB_FORMATS, Iterations, ModelOptions
from presage.errors import ConfigError

_Arguments = Annotated[
    list[str], typer.Argument(metavar="ARGUMENTS...", help="Arguments of sbatch, after --.")
]
_Pins = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Value to leave as it is: time, memory or nice. May be repeated."
    ),
]
_Share = Annotated[
    bool, typer.Option("--share", help="Let the job share its GPU with others, if it fits.")
]


@command(
    examples="""
    presage slurm sbatch --job job.json -- --gres=gpu:a100:1 train.sh

    # A torch module, which may share its GPU
    presage slurm sbatch --job my_package.models:resnet --iterations 20000 \\
      --share -- --gres=gpu:1 --time=8:00:00 train.sh
    """
)
def sbatch(
    job: Annotated[str, typer.Option(metavar="JOB", help=JOB_FORMATS)],
    arguments: _Arguments,
    model: ModelOptions,
    iterations: Iterations = None,
    pin: _Pins = None,
    share: _Share = False,
) -> None:
    """Submit a batch job with the features of its model, by which Slurm's requests are set.

    Options that the script or the arguments give are kept. Their time limit stays the latest end.
    """
    from presage.schedulers.slurm.sbatch import check_arguments, job_variables

    check_arguments(arguments)
    variables = job_variables(
        model.read(job, iterations), arguments, os.environ, pins=pin or (), share=share
    )
    try:
        os.execvpe("sbatch", ["sbatch", *arguments], {**os.environ, **variables})  # noqa: S606
    except OSError as error:
        raise ConfigError(
            f"sbatch cannot be run ({error.strerror}); run this on a login node of the cluster"
        ) from None
