"""``presage cluster submit``."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.job import ModelOptions
from presage.cli.scheduling.cluster.job_file import JobFile, command_of
from presage.cli.scheduling.cluster.options import ConnectionOptions
from presage.cli.scheduling.cluster.order_options import OrderOptions
from presage.cli.scheduling.cluster.submit_options import (
    DryRun,
    ForecastOptions,
    ProcessOptions,
    ResourceOptions,
    check_command,
    check_iterations,
)
from presage.errors import InvalidJobError
from presage.system.text.terminal import say

if TYPE_CHECKING:
    from presage.schedulers.live.client.client import ClusterClient
    from presage.schedulers.v1 import cluster_pb2 as pb


@command(
    examples="""
    presage cluster submit -- python train.py

    # Share a device by forecasts, and protect the run time
    presage cluster submit --features model.onnx --iterations 5000 \\
      --latency-sensitive -- python train.py

    # When would it start?
    presage cluster submit --dry-run --gpus 4 -- python train.py

    # Ten jobs, at most 4 at once, and one after another job
    presage cluster submit --name sweep --array 0-9%4 -- python train.py
    presage cluster submit --after sweep-0 --time-limit 2h -- python report.py

    # Options and command of a file; options given here come first
    presage cluster submit --file examples/cluster_job.yaml --priority 5

    # Train on 1 to 4 devices of any nodes
    presage cluster submit --min-gpus 1 --max-gpus 4 -- python elastic_job.py
    """,
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
    options_metavar="[OPTIONS] [--] COMMAND...",
)
def submit(
    context: typer.Context,
    *,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default="a new name", help="Name of the job."),
    ] = None,
    file: JobFile = None,
    dry_run: DryRun = False,
    forecast: ForecastOptions,
    model_options: ModelOptions,
    resources: ResourceOptions,
    process: ProcessOptions,
    order: OrderOptions,
    connection: ConnectionOptions,
) -> None:
    """Submit a job, and print its name when the controller has stored it.

    Everything after the options is the command of the job. One `--` may precede it.
    """
    del file  # its values are defaults of the other options
    from presage.schedulers.v1 import cluster_pb2 as pb

    words = list(context.args) or command_of(context)  # typer has removed the `--` before it
    check_command(words)
    check_iterations(forecast.iterations)
    fields = resources.fields() | process.fields() | order.fields()
    features = forecast.message(model_options)
    try:
        job = pb.Job(
            job_id=name if name is not None else f"{Path(words[0]).name}-{secrets.token_hex(4)}",
            command=words,
            model=forecast.model or ("" if features is None else features.name),
            iterations=forecast.iterations or 0,
            features=features,
            **fields,
        )
    except UnicodeEncodeError as error:
        raise InvalidJobError(f"{error.object!r} is not valid UTF-8") from None
    jobs = order.jobs(job)
    with connection.connected() as client:
        if dry_run:
            _predict(client, jobs[0])
            if order.after or order.after_any:
                say("Assumed: the jobs after which it runs are over.")
        else:
            _send(client, jobs)


def _predict(client: ClusterClient, job: pb.Job) -> None:
    """Print when a job would start and end."""
    from presage.cli.options.common import seconds_of
    from presage.cli.scheduling.cluster.when.options import WITHIN
    from presage.cli.scheduling.cluster.when.when_tables import print_answers
    from presage.schedulers.v1 import cluster_pb2 as pb

    within_s = [seconds_of(one, "--within") for one in WITHIN]
    print_answers(client.what_if(pb.WhatIfRequest(new_job=job, within_s=within_s)), WITHIN)


def _send(client: ClusterClient, jobs: Sequence[pb.Job]) -> None:
    """Submit jobs and print their names; the same jobs may be submitted twice."""
    from presage.cli.scheduling.cluster.tables import phase_of
    from presage.schedulers.live.client.waiting import TERMINAL_PHASES

    known = client.submit(jobs)
    new = [job.job_id for job in jobs if job.job_id not in known]
    outcome = "it was not started again" if new else "no new job was started"
    for before in client.list(known).jobs if known else ():
        already = f"job {before.job.job_id!r} was submitted before, and is {phase_of(before)}"
        if before.phase in TERMINAL_PHASES:
            for job_id in new:
                say(job_id)
            raise InvalidJobError(f"{already}: {outcome}; give another --name")
        say(f"{already}: {outcome}", err=True)
    for job in jobs:
        say(job.job_id)
