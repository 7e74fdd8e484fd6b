"""``presage simulate``: a trace of jobs on a cluster, under one policy after the other."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli.measuring.devices import DevicesFile
from presage.cli.scheduling.trace import tell_left_out
from presage.errors import ConfigError, PresageError
from presage.system.terminal import say

if TYPE_CHECKING:
    from presage.schedulers.simulator.scenario import Scenario
    from presage.schedulers.simulator.schedule_metrics import Metrics
    from presage.schedulers.simulator.simulation import Simulation

_OF_SWEEPS = ("sweep", "output", "workers", "ray")
_OF_BOTH = ("as_json", "devices")
_WORLD, _OUTPUT, _SWEEP = "The world", "What is written", "Sweeps"


def simulate(
    context: typer.Context,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="As `presage trace show` takes it.")
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML: nodes: [{name: n0, devices: 8, kind: v100}, ...]; or openb's csv.",
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME...]",
            help="Any of fifo, backfill, sjf, srtf, las, best-fit, bin-packing, packing, gang, "
            "sharing.",
        ),
    ] = "fifo,sjf",
    forecast: Annotated[
        str,
        typer.Option(
            metavar="WHO",
            help="oracle: all comes true; none; table: what --measured has; a release's folder, or "
            "HOST:PORT of a service.",
        ),
    ] = "oracle",
    risk: Annotated[
        float,
        typer.Option(help="Of a job taking more memory than a release foretells: 0.05, 0.1, 0.5."),
    ] = 0.1,
    noise: Annotated[
        float, typer.Option(help="Spread of the log-normal factors put on forecasts.")
    ] = 0.0,
    bias: Annotated[float, typer.Option(help="Median of those factors.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    devices: DevicesFile = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Tables of models alone and together: jobs slow each other down as measured.",
            rich_help_panel=_WORLD,
        ),
    ] = None,
    draw_models: Annotated[
        bool,
        typer.Option(
            "--draw-models",
            help="Draw every job's model from the measured ones, also where the trace names one.",
            rich_help_panel=_WORLD,
        ),
    ] = False,
    shares: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="Of compute, with --measured: none, they only say who goes where; caps, as MPS; "
            "weights, as control groups.",
            rich_help_panel=_WORLD,
        ),
    ] = "none",
    load: Annotated[
        float, typer.Option(help="Jobs arrive so many times as fast.", rich_help_panel=_WORLD)
    ] = 1.0,
    faults: Annotated[
        str,
        typer.Option(
            metavar="FILE|MTBF,MTTR",
            help="Nodes fail and are repaired: a file of faults, or mean times in days.",
            rich_help_panel=_WORLD,
        ),
    ] = "",
    from_day: Annotated[
        float,
        typer.Option(help="Day of the faults' file to begin with.", rich_help_panel=_WORLD),
    ] = 0.0,
    checkpoint_interval_s: Annotated[
        float,
        typer.Option(
            help="Between checkpoints of jobs; never, unless told.", rich_help_panel=_WORLD
        ),
    ] = math.inf,
    checkpoint_cost_s: Annotated[
        float, typer.Option(help="To write one.", rich_help_panel=_WORLD)
    ] = 0.0,
    restart_s: Annotated[
        float, typer.Option(help="To start again from one.", rich_help_panel=_WORLD)
    ] = 0.0,
    keep_going: Annotated[
        bool,
        typer.Option(
            "--keep-going", help="Log a policy's impossible action, and go on.",
            rich_help_panel=_WORLD,
        ),
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write every event and decision to DIR/POLICY.jsonl.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Write a page: timelines, policies side by side.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write DIR/jobs.parquet and DIR/intervals.parquet.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON and nothing else.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    sweep: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_SWEEP,
            help="YAML: the options above, each a value or a list; all combinations are simulated.",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            metavar="DIR", rich_help_panel=_SWEEP,
            help="Of a sweep's outcomes: one that was stopped goes on with those that are missing.",
        ),
    ] = Path("sweep"),
    workers: Annotated[
        int | None,
        typer.Option(help="Processes of a sweep; one a core unless told.", rich_help_panel=_SWEEP),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", rich_help_panel=_SWEEP,
            help='Sweep on a Ray cluster; "auto" for the one that this machine is in.',
        ),
    ] = None,
) -> None:  # fmt: skip
    """Simulate a trace of jobs on a cluster, and compare policies side by side.

    Without --measured, every kind of device is as fast as the one that was traced, and jobs do
    nothing to each other. Equal input gives equal output, byte for byte (docs/simulating.md).
    """
    from presage.schedulers.simulator.scenario import Scenario

    _check_mode(context, sweeps=sweep is not None)
    if sweep is not None:
        cores = os.cpu_count() or 1
        _sweep(sweep, output, cores if workers is None else workers, ray, as_json=as_json)
        return
    if trace is None or cluster is None:
        missing = "--trace" if trace is None else "--cluster"
        raise ConfigError(f"{missing} is missing; name its file, or --sweep FILE")
    names = list(dict.fromkeys(filter(None, map(str.strip, policy.split(",")))))
    scenarios = {
        name: Scenario(
            trace=trace, cluster=cluster, policy=name, forecast=forecast, seed=seed,
            measured=measured, draw_models=draw_models, shares=shares, load=load, risk=risk,
            noise=noise, bias=bias, faults=faults, from_day=from_day,
            checkpoint_interval_s=checkpoint_interval_s, checkpoint_cost_s=checkpoint_cost_s,
            restart_s=restart_s, keep_going=keep_going,
        )
        for name in names or [""]
    }  # fmt: skip
    if from_day and not Path(faults).is_file():
        raise ConfigError(
            f"--from-day {from_day:g} is a day of a file of faults; name one, --faults FILE, or "
            "leave it out"
        )
    _check_outputs(log, report, parquet)
    _simulate(scenarios, log, report, parquet, as_json=as_json)


def _simulate(
    scenarios: Mapping[str, Scenario],
    log: Path | None,
    report: Path | None,
    parquet: Path | None,
    *,
    as_json: bool,
) -> None:
    from presage.pipelines.stages.stage import write_page
    from presage.schedulers.simulator.scenario import load_trace, make_simulation
    from presage.schedulers.simulator.schedule_metrics import compute_metrics
    from presage.system.atomic_file import write_atomically
    from presage.system.progress import training_progress

    found: dict[str, Metrics] = {}
    kept: dict[str, Simulation] = {}  # for the page and the tables
    for name, scenario in scenarios.items():
        run = make_simulation(scenario)
        with training_progress(name) as move:
            run.run(partial(_move, move, len(load_trace(scenario).jobs)))
        found[name] = compute_metrics(run)
        _tell_remarks(name, run, foretells=scenario.forecast != "none")
        if report or parquet:
            kept[name] = run
        if log is not None:
            text = "".join(f"{line}\n" for line in run.log.lines())
            write_atomically(log / f"{name}.jsonl", partial(_write, text))
    if report is not None:
        from presage.schedulers.report.page import render

        title = f"{scenario.trace.stem} on {scenario.cluster.stem}"
        write_page(render(kept, title=title, facts=_facts(scenario)), report)
    if parquet is not None:
        _write_tables(kept, parquet)
    left_out = load_trace(scenario).left_out
    if as_json:
        document: dict[str, Any] = {"policies": {name: asdict(one) for name, one in found.items()}}
        if left_out:
            document["left_out"] = dict(left_out)
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        _print(found)
        tell_left_out(left_out)


def _facts(scenario: Scenario) -> dict[str, str]:
    """What the page says of its making."""
    said = {
        "trace": scenario.trace.name,
        "forecasts": scenario.forecast,
        "seed": f"{scenario.seed}",
        "load": f"{scenario.load:g}" if scenario.load != 1 else "",
        "measured": scenario.measured.name if scenario.measured else "",
        "shares": scenario.shares if scenario.shares != "none" else "",
        "faults": scenario.faults,
    }
    return {name: text for name, text in said.items() if text}


def _tell_remarks(name: str, run: Simulation, *, foretells: bool) -> None:
    """Of forecasts that were missing, jobs that did not run, and actions that were refused."""
    from presage.schedulers.core.job_status import ENDED

    for why, times in run.forecasts.failures.items():
        say(f"{name}: forecaster failed {times:,} times: {why}", err=True)
    for kind, jobs in run.forecasts.missing.items() if foretells else ():
        say(f"{name}: nothing is foretold of {jobs:,} jobs on {kind!r}", err=True)
    for kind, jobs in run.forecasts.out_of_domain.items():
        say(
            f"{name}: {jobs:,} jobs on {kind!r} are unlike all that the release learnt from: its "
            "bounds of memory promise nothing there",
            err=True,
        )
    rejected = [(job_id, why) for _, what, job_id, why in run.log.entries if what == "reject"]
    if rejected:
        job_id, why = rejected[0]
        say(f"{name}: rejected jobs: {len(rejected):,}, first {job_id!r}: {why}", err=True)
    starved = [job_id for job_id in run.ledger.jobs if run.ledger.status(job_id).phase not in ENDED]
    if starved:
        say(
            f"{name}: jobs never started, or not again: {len(starved):,}, first {starved[0]!r}",
            err=True,
        )
    refused = [more["why"] for _, what, _, more in run.log.entries if what == "refused"]
    if refused:
        say(f"{name}: {len(refused):,} decisions refused, first: {refused[0]}", err=True)


def _sweep(path: Path, folder: Path, workers: int, ray: str | None, *, as_json: bool) -> None:
    from presage.schedulers.simulator.sweep import (
        comparison_rows,
        read_sweep,
        run_sweep,
        scenario_names,
        write_outcomes_table,
    )
    from presage.system.progress import counted_progress

    if workers < 1:
        raise ConfigError(f"--workers {workers}, must be >= 1")
    scenarios = read_sweep(path)
    with counted_progress(f"{len(scenarios)} simulations", len(scenarios)) as step:
        found = run_sweep(scenarios, folder, workers=workers, ray=ray, progress=step)
    outcomes = [one for one in found if not isinstance(one, PresageError)]
    if outcomes:
        write_outcomes_table(outcomes, folder / "outcomes.parquet")
    if as_json:
        typer.echo(json.dumps({"outcomes": outcomes}, indent=2, allow_nan=False))
    elif outcomes:
        _print_compared(comparison_rows(outcomes))
    for name, one in zip(scenario_names(scenarios), found, strict=True):
        if isinstance(one, PresageError):
            say(f"{name}: {one}", err=True)
    if len(outcomes) < len(found):
        raise ConfigError(
            f"{len(found) - len(outcomes):,} of {len(found):,} simulations failed, as said above"
        )


def _print_compared(rows: list[dict[str, str]]) -> None:
    from presage.system.terminal import Table, show_whole

    table = Table(title="means, and 95 % intervals over seeds")
    for title in rows[0]:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    show_whole(table)


def _check_mode(context: typer.Context, *, sweeps: bool) -> None:
    """Refuse options that would do nothing: most of them of a sweep, some of anything else."""
    for name in context.params:
        given = context.get_parameter_source(name)
        if name in _OF_BOTH or given is None or given.name != "COMMANDLINE":
            continue
        option = f"--{name.replace('_', '-')}"
        if sweeps and name not in _OF_SWEEPS:
            raise ConfigError(
                f"{option} does nothing to a sweep; write {name}: in its file where that is one "
                "of its keys, or leave it out"
            )
        if not sweeps and name in _OF_SWEEPS:
            raise ConfigError(f"{option} is of sweeps; name one, --sweep FILE, or leave it out")


def _check_outputs(log: Path | None, report: Path | None, parquet: Path | None) -> None:
    """Refuse what cannot be written, before the minutes that a large trace takes."""
    from presage.pipelines.stages.stage import check_report_path

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

    from presage.schedulers.simulator.result_tables import intervals_table, jobs_table
    from presage.system.atomic_file import write_atomically

    for name, table in (("jobs", jobs_table), ("intervals", intervals_table)):
        rows = table(simulated)
        write_atomically(folder / f"{name}.parquet", partial(pq.write_table, rows))


def _move(move: Callable[[int, int], None], jobs: int, ended: int) -> None:
    move(ended, jobs)


def _write(text: str, path: Path) -> None:
    path.write_text(text)


def _print(found: dict[str, Metrics]) -> None:
    """A row a metric, a column a policy; the best is bold."""
    from presage.schedulers.report.figures import columns_of
    from presage.system.terminal import Table, show_whole, styled

    table = Table()
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    for column in columns_of(found):
        cells = [column.cells[name] for name in found]
        unit = f" {column.unit}" if column.unit else ""
        shown = [styled(cell.text, "bold") if cell.best else cell.text for cell in cells]
        table.add_row(f"{column.title}{unit}", *shown)
    show_whole(table)
