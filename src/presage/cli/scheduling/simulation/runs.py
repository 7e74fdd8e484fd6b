"""Simulations of one trace under several policies, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from presage.cli.options.inc import IncOptions
from presage.cli.output.simulation import PrintedRun, print_run, say_remarks
from presage.cli.scheduling.simulation.result_options import ResultOptions

if TYPE_CHECKING:
    from presage.schedulers.report.run_comparison import Run, RunComparison
    from presage.schedulers.simulator.ground_truth.switch_sharing import SwitchSharing
    from presage.schedulers.simulator.results.schedule_metrics import Metrics
    from presage.schedulers.simulator.results.user_metrics import UserMetrics
    from presage.schedulers.simulator.scenario import Scenario
    from presage.schedulers.simulator.simulation import Simulation


def run_policies(scenarios: Mapping[str, Scenario], result: ResultOptions, inc: IncOptions) -> None:
    """Simulate scenarios that differ in their policy, write the files and print the metrics.

    With ``--inc``, all results are those with switches; each policy also runs without them.

    Raises
    ------
    PresageError
        An input is invalid, or a policy took an invalid action.
    """
    from presage.schedulers.report.run_comparison import Run
    from presage.schedulers.simulator.results.schedule_metrics import compute_metrics
    from presage.schedulers.simulator.results.switch_effect import SwitchEffect, switch_effect
    from presage.schedulers.simulator.scenario import load_cluster, load_trace

    found: dict[str, Metrics] = {}
    effects: dict[str, SwitchEffect] = {}
    users: dict[str, Mapping[str, UserMetrics]] = {}  # if they are printed
    kept: dict[str, Simulation] = {}  # for the report and the tables
    by_user = any(map(_divides_by_user, scenarios.values()))
    for name, scenario in scenarios.items():
        sharing = inc.sharing(load_cluster(scenario).topology) if inc.inc else None
        run = _run(name, scenario, sharing)
        if sharing is not None:
            effects[name] = switch_effect(_run(name, scenario), run)
        found[name] = compute_metrics(run)
        users |= {name: _user_metrics(run)} if by_user else {}
        say_remarks(name, run, has_forecasts=scenario.predictor != "none")
        if result.report or result.parquet:
            kept[name] = run
        if result.log is not None:
            _write_log(run, result.log / f"{name}.jsonl")
    comparison = _compare(Run(_settings(scenario), found), result.baseline)
    _write_results(kept, scenario, result, comparison)
    printed = PrintedRun(
        found, _settings(scenario), load_trace(scenario).left_out, effects, users, comparison
    )
    print_run(printed, as_json=result.as_json)


def _compare(run: Run, baseline: Path | None) -> RunComparison | None:
    from presage.schedulers.report.run_comparison import compare_runs, read_run

    return None if baseline is None else compare_runs(read_run(baseline), run)


def _write_results(
    kept: dict[str, Simulation],
    scenario: Scenario,
    result: ResultOptions,
    comparison: RunComparison | None,
) -> None:
    """Write the report and the tables that are requested."""
    if result.report is not None:
        facts = _settings(scenario)
        if result.baseline is not None:
            facts["baseline"] = result.baseline.name
        _write_report(kept, scenario, result.report, facts, comparison)
    if result.parquet is not None:
        _write_tables(kept, result.parquet)


def _user_metrics(run: Simulation) -> Mapping[str, UserMetrics]:
    from presage.schedulers.simulator.results.user_metrics import compute_user_metrics

    return compute_user_metrics(run)


def _divides_by_user(scenario: Scenario) -> bool:
    """Return whether a scenario has quotas or fair share."""
    from presage.schedulers.policies.policy_registry import policy_of

    return scenario.quotas is not None or policy_of(scenario.policy).needs.fair_share_s > 0


def _run(name: str, scenario: Scenario, sharing: SwitchSharing | None = None) -> Simulation:
    from presage.schedulers.simulator.scenario import load_trace, make_simulation
    from presage.system.text.progress import training_progress

    run = make_simulation(scenario, switch_sharing=sharing)
    with training_progress(name) as move:
        run.run(partial(_move, move, len(load_trace(scenario).jobs)))
    return run


def _move(move: Callable[[int, int], None], jobs: int, ended: int) -> None:
    move(ended, jobs)


def _write_log(run: Simulation, path: Path) -> None:
    from presage.system.files.atomic_file import write_atomically

    text = "".join(f"{line}\n" for line in run.log.lines())
    write_atomically(path, lambda partial_file: partial_file.write_text(text))


def _write_report(
    runs: dict[str, Simulation],
    scenario: Scenario,
    path: Path,
    facts: Mapping[str, str],
    comparison: RunComparison | None,
) -> None:
    from presage.pipelines.stages.stage import write_page
    from presage.schedulers.report.page import render

    title = f"{scenario.trace.stem} on {scenario.cluster.stem}"
    write_page(render(runs, title=title, facts=facts, comparison=comparison), path)


def _settings(scenario: Scenario) -> dict[str, str]:
    """Return the settings that the report and the JSON document state, without defaults."""
    settings = {
        "trace": scenario.trace.name,
        "cluster": scenario.cluster.name,
        "predictor": scenario.predictor,
        "seed": f"{scenario.seed}",
        "load": f"{scenario.load:g}" if scenario.load != 1 else "",
        "measured": scenario.measured.name if scenario.measured else "",
        "shares": scenario.shares if scenario.shares != "none" else "",
        "faults": scenario.faults,
        "quotas": scenario.quotas.name if scenario.quotas else "",
    }
    for field in fields(scenario):
        value = getattr(scenario, field.name)
        if field.name not in (*settings, "policy") and value != field.default:
            settings[field.name] = f"{value}"
    return {name: text for name, text in settings.items() if text}


def _write_tables(runs: dict[str, Simulation], folder: Path) -> None:
    import pyarrow.parquet as pq

    from presage.schedulers.simulator.results.result_tables import intervals_table, jobs_table
    from presage.system.files.atomic_file import write_atomically

    for name, table in (("jobs", jobs_table), ("intervals", intervals_table)):
        rows = table(runs)
        write_atomically(folder / f"{name}.parquet", partial(pq.write_table, rows))
