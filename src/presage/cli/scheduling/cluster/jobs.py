"""``presage cluster``: a live cluster of machines, and the jobs on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from presage.cli.job_source import BATCH_SIZE, OPTIMIZER, PRECISION
from presage.cli.scheduling.cluster.options import (
    HERE,
    Authority,
    Certificate,
    Controller,
    Key,
    Token,
    connected,
)
from presage.cli.scheduling.cluster.processes import add_processes
from presage.cli.scheduling.cluster.ui import ui
from presage.cli.scheduling.cluster.variables import job_variables
from presage.errors import ConfigError, InvalidJobError, ServiceError
from presage.system.terminal import say

app = typer.Typer(
    help="A live cluster: jobs that share devices by what is foretold of them (docs/cluster.md).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
add_processes(app)
app.command()(ui)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Jobs = Annotated[list[str], typer.Argument(metavar="JOB...", help="Names of jobs.")]
OneJob = Annotated[str, typer.Argument(metavar="JOB", help="A job's name.")]
# What a message takes.
_MOST_INT32, _MOST_INT64 = 2**31 - 1, 2**63 - 1


@app.command(
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
    options_metavar="[OPTIONS] [--] COMMAND...",
    epilog="Everything after the options is the job's command; one `--` may stand before it.",
)
def submit(
    context: typer.Context,
    controller: Controller = HERE,
    name: Annotated[str | None, typer.Option(help="Of the job; a new one if left out.")] = None,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="What it is foretold by: a JSON file of job features, an ONNX file, a TensorFlow "
            "graph, or module:function. A job of which nothing is foretold has a whole device.",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="That a campaign's tables know it by.")
    ] = "",
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, show_default=str(BATCH_SIZE), help="Samples a step; not of a JSON file."
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1, help="Steps of the whole job; --features needs it, unless a JSON file has it."
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(show_default=OPTIMIZER, help="sgd, adam or adamw; not of a JSON file."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            show_default=PRECISION, help="fp32, tf32, fp16, bf16 or fp64; not of a JSON file."
        ),
    ] = None,
    latency_sensitive: Annotated[
        bool, typer.Option("--latency-sensitive", help="It goes before best-effort jobs.")
    ] = False,
    priority: Annotated[int, typer.Option(help="Higher goes first, within a class.")] = 0,
    gpus: Annotated[int, typer.Option(min=1, help="Devices, all of one node.")] = 1,
    kind: Annotated[
        list[str] | None, typer.Option(help="Kind of device that will do; repeat it.")
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Of a device, under bin-packing.")
    ] = 1.0,
    memory_gib: Annotated[
        float, typer.Option(min=0.0, help="Of a device, under bin-packing; else as the share.")
    ] = 0.0,
    folder: Annotated[Path | None, typer.Option(help="That it runs in; by default this.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Variable that the job gets with its value here; repeat it."
        ),
    ] = None,
    env_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Variables for the job, a line NAME=VALUE each."),
    ] = None,
    checkpoint_every_s: Annotated[
        float, typer.Option(min=0.0, help="Between its own checkpoints; 0: it makes none.")
    ] = 0.0,
    grace_s: Annotated[
        float, typer.Option(min=0.001, help="That it may take to save its state when asked.")
    ] = 30.0,
    retries: Annotated[int, typer.Option(min=0, help="After it failed by itself.")] = 0,
    token_file: Token = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: Key = None,
) -> None:
    """Submit a job; print its name once it is on the controller's disk."""
    import secrets

    from presage.cli.scheduling.cluster.tables import phase_of
    from presage.schedulers.live.client.waiting import TERMINAL_PHASES
    from presage.schedulers.v1 import cluster_pb2 as pb

    _check_numbers(
        {
            "--priority": (priority, _MOST_INT32),
            "--gpus": (gpus, _MOST_INT32),
            "--retries": (retries, _MOST_INT32),
            "--iterations": (iterations or 0, _MOST_INT64),
            "--share": (share, 1),
            "--memory-gib": (memory_gib, _MOST_INT64 >> 30),
        }
    )
    command = list(context.args)  # without the `--` before it, which was typer's
    if not command:
        raise InvalidJobError("no command; write it behind the options: -- python train.py")
    told = _features(features, batch_size, iterations, optimizer, precision)
    try:
        job = pb.Job(
            job_id=name if name is not None else f"{Path(command[0]).name}-{secrets.token_hex(4)}",
            command=command,
            folder=str((folder or Path()).resolve()),
            environment=job_variables(env or (), env_file),
            gpus=gpus,
            kinds=kind or (),
            latency_sensitive=latency_sensitive,
            priority=priority,
            model=model or ("" if told is None else told.name),
            iterations=iterations or 0,
            features=told,
            compute_milli=round(1000 * share),
            memory_bytes=round(memory_gib * 2**30),
            checkpoint_every_s=checkpoint_every_s,
            grace_s=grace_s,
            retries=retries,
        )
    except UnicodeEncodeError as error:
        raise InvalidJobError(f"{error.object!r} is no UTF-8; write it so") from None
    with connected(controller, token_file, ca, cert, key) as client:
        if client.submit([job]):
            (before,) = client.list([job.job_id]).jobs
            said = f"job {job.job_id!r} was submitted before, and is {phase_of(before)}"
            if before.phase in TERMINAL_PHASES:
                raise InvalidJobError(f"{said}: nothing was started; give another --name")
            say(f"{said}: nothing else was started", err=True)
    say(job.job_id)


@app.command()
def ps(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB...]", help="These alone, also where they are over."),
    ] = None,
    controller: Controller = HERE,
    everything: Annotated[bool, typer.Option("--all", help="Also jobs that are over.")] = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="Nodes and their devices.")] = False,
    as_json: AsJson = False,
    token_file: Token = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: Key = None,
) -> None:
    """List jobs, or nodes."""
    from presage.cli.render import print_json
    from presage.cli.scheduling.cluster.tables import job_table, node_table
    from presage.system.terminal import show_whole

    if nodes and jobs:
        raise ConfigError("--nodes and names of jobs contradict each other; give one of them")
    with connected(controller, token_file, ca, cert, key) as client:
        found = client.list(jobs or (), ended=everything)
    if as_json:
        rows = found.nodes if nodes else found.jobs
        print_json([_json(row) for row in rows])
    else:
        why = everything or bool(jobs)
        show_whole(node_table(found) if nodes else job_table(found, why=why))
    if found.left_out and not nodes:
        say(
            f"{found.left_out:,} more jobs are not listed; `presage cluster explain` has each",
            err=True,
        )
    if found.forecaster:
        say(f"forecasts: {found.forecaster}", err=True)


@app.command()
def explain(
    job: OneJob,
    controller: Controller = HERE,
    as_json: AsJson = False,
    token_file: Token = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: Key = None,
) -> None:
    """Say why a job is where it is, with the forecasts used."""
    from presage.cli.render import print_json
    from presage.cli.scheduling.cluster.tables import (
        candidate_table,
        history_table,
        now_table,
        told_table,
    )
    from presage.system.terminal import show_whole

    with connected(controller, token_file, ca, cert, key) as client:
        found = client.explain(job)
    if as_json:
        print_json(_json(found))
        return
    say(f"{job}: {found.sentence}.")
    tables = (now_table, told_table, candidate_table, history_table)
    for table in (of(found) for of in tables):
        if table.row_count:
            show_whole(table)


@app.command()
def wait(
    jobs: Jobs,
    controller: Controller = HERE,
    token_file: Token = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: Key = None,
) -> None:
    """Wait until jobs are over; the exit status is 1 if one of them did not finish."""
    from presage.cli.scheduling.cluster.tables import phase_of
    from presage.schedulers.live.client.waiting import jobs_as_completed
    from presage.schedulers.v1 import cluster_pb2 as pb

    def away(error: ServiceError) -> None:
        say(f"{error}; it is asked again until it answers", err=True)

    all_finished = True
    with connected(controller, token_file, ca, cert, key) as client:
        for row in jobs_as_completed(client, jobs, on_away=away):
            if row.phase != pb.FINISHED:
                all_finished = False
                say(f"job {row.job.job_id!r} is {phase_of(row)}: {row.why}", err=True)
    if not all_finished:
        raise typer.Exit(1)


@app.command()
def cancel(
    jobs: Jobs,
    controller: Controller = HERE,
    token_file: Token = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: Key = None,
) -> None:
    """End jobs for good."""
    with connected(controller, token_file, ca, cert, key) as client:
        client.cancel(jobs)


@app.command()
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node's name.")],
    controller: Controller = HERE,
    evict: Annotated[
        bool, typer.Option("--evict", help="Jobs there save their state and go on elsewhere.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Give it jobs again.")] = False,
    token_file: Token = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: Key = None,
) -> None:
    """Give a node no more jobs; print those that are still there."""
    if evict and undo:
        raise ConfigError("--evict and --undo contradict each other; give one of them")
    with connected(controller, token_file, ca, cert, key) as client:
        for job_id in client.drain(node, undo=undo, evict=evict):
            say(job_id)


@app.command()
def logs(
    job: OneJob,
    controller: Controller = HERE,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="As it grows.")] = False,
    token_file: Token = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: Key = None,
) -> None:
    """Print what a job wrote to its output and error output.

    On a terminal control sequences other than colours are shown, not obeyed; a pipe gets the bytes
    as they are.
    """
    from presage.cli.log_output import print_log

    with connected(controller, token_file, ca, cert, key) as client:
        print_log(client.logs(job, follow=follow))


@app.command()
def watch(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB...]")] = None,
    controller: Controller = HERE,
    after: Annotated[
        int, typer.Option(metavar="ENTRY", help="Of the journal, 0 for all; -1: from now on.")
    ] = -1,
    as_json: AsJson = False,
    token_file: Token = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: Key = None,
) -> None:
    """Print what happens, as it happens, one event a line."""
    import json
    import time

    from presage.cli.scheduling.cluster.tables import detail_of

    with connected(controller, token_file, ca, cert, key) as client:
        for event in client.watch(jobs or (), after=after):
            if as_json:
                typer.echo(json.dumps(_json(event)))
                continue
            at = time.strftime("%H:%M:%S", time.localtime(event.at_unix_s))
            about = " ".join(filter(None, (event.job_id, event.node, detail_of(event))))
            say(f"{at} {event.what.lower()} {about}")


def _features(
    source: str | None,
    batch_size: int | None,
    iterations: int | None,
    optimizer: str | None,
    precision: str | None,
) -> Any:
    if source is None:
        if batch_size or optimizer or precision:
            raise ConfigError(
                "--batch-size, --optimizer and --precision are of --features; give it, too"
            )
        return None
    if iterations is None and not source.endswith(".json"):
        raise ConfigError(
            f"--features {source}: how many steps the job has is not said there, and what it is "
            "promised goes by them; give --iterations"
        )
    from presage.cli.job_source import read_job
    from presage.serving.codec.wire import write_job

    job = read_job(
        source,
        batch_size=batch_size,
        iterations=iterations,
        optimizer=optimizer,
        precision=precision,
    )
    return write_job(job)


def _check_numbers(options: Mapping[str, tuple[float, int]]) -> None:
    """Numbers that a message takes, by their options; each with the most that it may be."""
    for option, (value, most) in options.items():
        if not -most <= value <= most:  # nor is it, if it is no number
            raise InvalidJobError(f"{option} {value}: must be a number, of at most {most:,}")


def _json(message: Any) -> dict[str, Any]:
    """Also of what is 0, false or empty: programs need not know what is left out."""
    from google.protobuf.json_format import MessageToDict

    found: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found
