"""``presage simulate``: a trace of jobs on a cluster, under one policy after the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.features.errors import ConfigError
from presage.trace_cli import tell_left_out

if TYPE_CHECKING:
    from presage.schedulers.metrics import Metrics
    from presage.schedulers.simulator import Simulation

_FORECASTS = ("oracle", "none")


def simulate(
    trace: Annotated[
        Path,
        typer.Option(metavar="FILE", help="As `presage trace show` takes it."),
    ],
    cluster: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="YAML: nodes: [{name: n0, devices: 8, kind: v100}, ...]; or openb's csv.",
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME...]",
            help="Any of fifo, backfill, sjf, srtf, las, best-fit, bin-packing, packing.",
        ),
    ] = "fifo,sjf",
    forecast: Annotated[
        str, typer.Option(help="oracle: run times come true; none: nobody foretells any.")
    ] = "oracle",
    seed: Annotated[int, typer.Option(help="Of policies that draw.")] = 0,
    log: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write every event and decision to DIR/POLICY.jsonl."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a page: timelines, policies side by side."),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write DIR/jobs.parquet and DIR/intervals.parquet."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Simulate a trace of jobs on a cluster, and compare policies side by side.

    Every kind of device is as fast as the one that was traced. Equal input gives equal output, byte
    for byte.
    """
    from presage.pipelines.progress import training_progress
    from presage.pipelines.stage import write_atomically, write_page
    from presage.schedulers.cluster_file import read_cluster
    from presage.schedulers.metrics import metrics_of
    from presage.schedulers.no_forecasts import NoForecasts
    from presage.schedulers.oracle import Oracle
    from presage.schedulers.policies import POLICIES
    from presage.schedulers.simulator import Simulation
    from presage.schedulers.traces.formats import read_trace
    from presage.schedulers.truth import Durations

    names = list(dict.fromkeys(filter(None, map(str.strip, policy.split(",")))))
    for kind, said, known in (
        *(("policy", name, tuple(POLICIES)) for name in names or [""]),
        ("forecast", forecast, _FORECASTS),
    ):
        if said not in known:
            near = get_close_matches(said, known, n=1)
            hint = f"nearest is {near[0]!r}" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"--{kind} {said!r} is not known; {hint}")
    devices, jobs = read_cluster(cluster), read_trace(trace)
    _check_outputs(log, report, parquet)
    truth = Durations(jobs.duration_s)
    found: dict[str, Metrics] = {}
    kept: dict[str, Simulation] = {}  # for the page and the tables
    for name in names:
        forecaster = Oracle(truth, devices) if forecast == "oracle" else NoForecasts()
        run = Simulation(devices, POLICIES[name](), forecaster, truth, jobs.jobs, seed=seed)
        with training_progress(name) as move:
            run.run(partial(_move, move, len(jobs.jobs)))
        found[name] = metrics_of(run)
        if report or parquet:
            kept[name] = run
        if log is not None:
            text = "".join(f"{line}\n" for line in run.log.lines())
            write_atomically(log / f"{name}.jsonl", partial(_write, text))
    if report is not None:
        from presage.schedulers.report.page import render

        facts = {"trace": trace.name, "forecasts": forecast, "seed": f"{seed}"}
        write_page(render(kept, title=f"{trace.stem} on {cluster.stem}", facts=facts), report)
    if parquet is not None:
        _write_tables(kept, parquet)
    if as_json:
        policies = {name: asdict(one) for name, one in found.items()}
        document = {"policies": policies, "left_out": dict(jobs.left_out)}
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        _print(found)
        tell_left_out(jobs.left_out)


def _check_outputs(log: Path | None, report: Path | None, parquet: Path | None) -> None:
    """Refuse what cannot be written, before the minutes that a large trace takes."""
    from presage.pipelines.stage import check_report_path

    for option, folder in (("log", log), ("parquet", parquet)):
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"--{option} {folder}: {error.strerror}; name a folder") from None
    if report is not None:
        check_report_path(report)
        import_module("jinja2")
    if parquet is not None:
        import_module("pyarrow")


def _write_tables(simulated: dict[str, Simulation], folder: Path) -> None:
    import pyarrow.parquet as pq

    from presage.pipelines.stage import write_atomically
    from presage.schedulers.tables import intervals_table, jobs_table

    for name, table in (("jobs", jobs_table), ("intervals", intervals_table)):
        rows = table(simulated)
        write_atomically(folder / f"{name}.parquet", partial(pq.write_table, rows))


def _move(move: Callable[[int, int], None], jobs: int, ended: int) -> None:
    move(ended, jobs)


def _write(text: str, path: Path) -> None:
    path.write_text(text)


def _print(found: dict[str, Metrics]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for title in ("policy", "jobs", "JCT h", "median", "99 %", "queue h", "makespan h", "use"):
        table.add_column(title, justify="left" if title == "policy" else "right")
    for name, one in found.items():
        seconds = (
            one.average_jct_s, one.median_jct_s, one.p99_jct_s, one.average_queue_s, one.makespan_s
        )  # fmt: skip
        use = "-" if one.device_use is None else f"{one.device_use:.0%}"
        shown = ["-" if value is None else f"{value / 3600:,.2f}" for value in seconds]
        table.add_row(name, f"{one.jobs:,}", *shown, use)
    console = Console(soft_wrap=True)
    console.print(table)
    for name, one in found.items():
        left = {"failed": one.failed, "rejected": one.rejected, "starved": one.starved}
        for what, count in left.items():
            if count:
                console.print(f"{name}: {count:,} jobs {what}", highlight=False)
