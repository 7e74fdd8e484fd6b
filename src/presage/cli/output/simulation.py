"""Metrics of simulated schedules, and remarks on simulations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from presage.cli.output.json_output import print_json
from presage.cli.output.run_comparison import comparison_document, print_comparison
from presage.cli.output.trace import say_left_out
from presage.system.text.terminal import Name, Table, print_table, say, styled, table_width

if TYPE_CHECKING:
    from presage.schedulers.report.run_comparison import RunComparison
    from presage.schedulers.simulator.results.schedule_metrics import Metrics
    from presage.schedulers.simulator.results.switch_effect import SwitchEffect
    from presage.schedulers.simulator.results.user_metrics import UserMetrics
    from presage.schedulers.simulator.simulation import Simulation

_TITLE_WIDTH = 24  # columns of the first column, with borders
_MIN_POLICY_WIDTH, _MAX_POLICY_WIDTH = 8, 20  # columns; a longer name is shortened if needed


@dataclass(frozen=True, slots=True)
class PrintedRun:
    """What ``presage simulate`` prints.

    Attributes
    ----------
    metrics : mapping of str to Metrics
        By policy.
    left_out : mapping of str to int
        Number of rows of the trace that are no jobs, by reason.
    effects : mapping of str to SwitchEffect
        What switches change, by policy; empty without switches.
    users : mapping
        Metrics by policy, then by user; empty if nothing depends on users.
    comparison : RunComparison or None
        Changes since an earlier run.
    """

    metrics: Mapping[str, Metrics]
    settings: Mapping[str, str]
    left_out: Mapping[str, int]
    effects: Mapping[str, SwitchEffect]
    users: Mapping[str, Mapping[str, UserMetrics]]
    comparison: RunComparison | None


def print_run(run: PrintedRun, *, as_json: bool) -> None:
    """Print a run as tables, or as a JSON document."""
    from presage.schedulers.report.ties import tie_sentences

    if as_json:
        print_json(_document(run), allow_nan=False)
        return
    for table in metric_tables(run.metrics):
        print_table(table)
    for sentence in tie_sentences(run.metrics):
        say(sentence)
    if run.effects:
        print_table(_effects_table(run.effects))
    if run.users:
        print_table(_users_table(run.users))
    if run.comparison is not None:
        print_comparison(run.comparison)
    say_left_out(run.left_out)


def _document(run: PrintedRun) -> dict[str, Any]:
    """Return the JSON document with the parts that are there."""
    document: dict[str, Any] = {
        "policies": {name: asdict(one) for name, one in run.metrics.items()},
        "settings": dict(run.settings),
    }
    if run.left_out:
        document["left_out"] = dict(run.left_out)
    if run.effects:
        document["inc"] = {name: asdict(effect) for name, effect in run.effects.items()}
    if run.users:
        document["users"] = {
            name: {user: asdict(one) for user, one in of_user.items()}
            for name, of_user in run.users.items()
        }
    if run.comparison is not None:
        document["comparison"] = comparison_document(run.comparison)
    return document


def _effects_table(effects: Mapping[str, SwitchEffect]) -> Table:
    """Return a table of what switches with in-network computing change, a row per policy."""
    table = Table(title="AllReduce by switches, compared with ring only")
    for title in ("", "jobs on a switch", "JCT mean", "worst job", "its JCT"):
        table.add_column(title, justify="left" if title in ("", "worst job") else "right")
    for name, effect in effects.items():
        if effect.ring_jct_s is None or effect.switch_jct_s is None:
            table.add_row(Name(name), f"{effect.jobs:,}", "-", "-", "-")
            continue
        mean = effect.switch_jct_s / effect.ring_jct_s - 1 if effect.ring_jct_s else 0.0
        worst = (effect.worst_ratio or 1.0) - 1
        table.add_row(
            Name(name),
            f"{effect.jobs:,}",
            f"{mean:+.1%}".replace("%", " %"),
            Name(effect.worst_job or "-"),
            f"{worst:+.1%}".replace("%", " %"),
        )
    return table


def _users_table(users: Mapping[str, Mapping[str, UserMetrics]]) -> Table:
    """Return a table of the waits of users, a row per user and policy."""
    from presage.schedulers.report.user_table import user_rows

    table = Table(title="users")
    for title in ("user", "policy", "jobs", "wait mean", "longest wait", "device time"):
        table.add_column(title, justify="left" if title in ("user", "policy") else "right")
    for row in user_rows(users):
        table.add_row(Name(row.user), Name(row.policy), *row[2:])
    return table


def metric_tables(found: Mapping[str, Metrics]) -> Iterator[Table]:
    """Yield tables with a row per metric and a column per policy; the best value is bold.

    Policies that do not fit the terminal have further tables.
    """
    from presage.schedulers.report.figures import make_columns

    columns = make_columns(found)
    for part in _parts(found):
        table = Table()
        table.add_column("")
        for name in part:
            table.add_column(Name(name), justify="right")
        for column in columns:
            cells = [column.cells[name] for name in part]
            unit = f" ({column.unit})" if column.unit else ""
            shown = [styled(cell.text, "bold") if cell.is_best else cell.text for cell in cells]
            table.add_row(f"{column.title}{unit}", *shown)
        yield table


def _parts(policies: Iterable[str]) -> Iterator[list[str]]:
    """Yield groups of policies whose columns fit the terminal."""
    part: list[str] = []
    free = table_width() - _TITLE_WIDTH
    for name in policies:
        width = max(_MIN_POLICY_WIDTH, min(len(name), _MAX_POLICY_WIDTH)) + 3
        if part and width > free:
            yield part
            part, free = [], table_width() - _TITLE_WIDTH
        part.append(name)
        free -= width
    yield part


def print_compared(rows: list[dict[str, str]]) -> None:
    """Print the metrics of a sweep, a row per combination of settings."""
    table = Table(title="means, with 95 % confidence intervals over seeds")
    for title in rows[0]:
        table.add_column(title)
    for row in rows:
        table.add_row(*(Name(text) if "/" in text else text for text in row.values()))
    print_table(table)


def say_remarks(name: str, run: Simulation, *, has_forecasts: bool) -> None:
    """Print remarks on missing forecasts, jobs that did not run, and rejected actions."""
    for remark in _remarks(run, has_forecasts=has_forecasts):
        say(f"{name}: {remark}", err=True)


def _remarks(run: Simulation, *, has_forecasts: bool) -> Iterator[str]:
    from presage.schedulers.core.job_status import ENDED

    if run.policy.warning:
        yield run.policy.warning
    for why, times in run.forecasts.failures.items():
        yield f"the predictor failed {times:,} times: {why}"
    for kind, jobs in run.forecasts.missing.items() if has_forecasts else ():
        yield f"no forecast is available for {jobs:,} jobs on {kind!r}"
    for kind, jobs in run.forecasts.out_of_domain.items():
        yield (
            f"{jobs:,} jobs on {kind!r} are out of domain: their memory bounds are not guaranteed"
        )
    rejected = [(job_id, why) for _, what, job_id, why in run.log.entries if what == "reject"]
    if rejected:
        job_id, why = rejected[0]
        yield f"rejected jobs: {len(rejected):,}, first {job_id!r}: {why}"
    starved = [job_id for job_id in run.ledger.jobs if run.ledger.status(job_id).phase not in ENDED]
    if starved:
        yield f"jobs that never started, or never restarted: {len(starved):,}, first {starved[0]!r}"
    refused = [details["reason"] for _, event, _, details in run.log.entries if event == "refused"]
    if refused:
        yield f"{len(refused):,} decisions were rejected, first: {refused[0]}"
