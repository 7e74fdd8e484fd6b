"""``presage elastic run``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.training.elastic.options import JobName, StateFolder, state_folder
from presage.errors import ConfigError
from presage.system.text.terminal import say


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOptions:
    """Number of workers of a job, and time limits."""

    workers: Annotated[int, typer.Option(min=1, help="Number of workers to start with.")] = 1
    min_workers: Annotated[
        int, typer.Option("--min", min=1, help="Number of workers below which the job waits.")
    ] = 1
    max_workers: Annotated[
        int, typer.Option("--max", min=1, max=64, help="Largest number of workers.")
    ] = 64
    memory_gib: Annotated[
        float | None,
        typer.Option(
            min=0.01, show_default="no limit", help="Memory of each worker on its GPU, in GiB."
        ),
    ] = None
    silence_s: Annotated[
        float, typer.Option(help="Seconds without a heartbeat after which a worker is removed.")
    ] = 10.0


@command(
    examples="""
    presage elastic run --workers 2 digits python train.py

    # Never train with less than 2 or more than 4 workers
    presage elastic run --workers 2 --min 2 --max 4 digits python train.py
    """,
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
def run(
    context: typer.Context, job: JobName, *, size: SizeOptions, state: StateFolder = None
) -> None:
    """Run a job on this machine: its leader, and the processes of its workers.

    Everything after the name of the job is the command of a worker: a script that calls
    `presage.training.elastic.begin`. A worker that ends is not started again; the others continue.
    `presage elastic resize` starts and releases workers. The exit status is 0 if the job is done,
    and 75 if it is suspended: all workers left, by SIGTERM or SIGUSR1. It continues from its
    checkpoint when it is started again.
    """
    from presage.training.leader.job_config import JobConfig
    from presage.training.local_job import LocalJob

    words = list(context.args)
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise ConfigError(f"no command for job {job!r}; give it after the name of the job")
    config = JobConfig(
        workers=size.workers,
        min_workers=size.min_workers,
        max_workers=size.max_workers,
        silence_s=size.silence_s,
        memory_bytes=int((size.memory_gib or 0) * 2**30),
    )
    local = LocalJob(state_folder(state), job, config, words, partial(say, err=True))
    raise typer.Exit(local.run())
