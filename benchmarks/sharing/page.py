"""The page of benchmarks/sharing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.sharing.runs import DEVICES_OF_A_NODE, RESTART_S, URGENT, Run

HOUR_S = 3600.0

INTRODUCTION = """\
# Sharing with quality of service, at scale

This benchmark compares the `sharing` policy with exclusive devices on simulated clusters, and
measures the load on a live controller. Written by `python -m benchmarks.sharing`.

The jobs are a day of Philly's jobs of at most half a day, which request as many device-seconds as
the cluster has in a day. {urgent:.0%} of the single-device jobs are latency-sensitive. Nodes have
{devices} devices with the memory of an RTX 3090. Ground truth is Lucid's measurement of 44
training jobs, solo and in pairs. Forecasts come from releases that were trained on other families
of jobs on the same card. A co-located job gets its allocated compute and no more. A restart costs
{restart_s:g} s.

*SLO violated* is the share of latency-sensitive jobs that took longer, from their first start to
their end, than was predicted when they started. *Avoidably* is the same share of the
jobs that could meet their SLO on an exclusive device; for all others the predicted run time was too
short.
"""


def page(
    runs: Mapping[str, Sequence[Run]],
    policies: Mapping[str, str],
    outcomes: Mapping[Run, Mapping[str, Any]],
    exceeded: Mapping[float, tuple[int, int]],
    loads: Sequence[Mapping[str, float]],
) -> Iterator[str]:
    """Return the page as lines of Markdown.

    Parameters
    ----------
    exceeded : mapping of float to (int, int)
        For each accepted risk, the kinds of jobs that exceed the predicted memory, and all kinds.
    """
    yield INTRODUCTION.format(urgent=URGENT, devices=DEVICES_OF_A_NODE, restart_s=RESTART_S)
    names = {policy: name for name, policy in policies.items()}
    for title, group in (("A thousand nodes", "large"), ("Thirty nodes, three seeds", "small")):
        yield f"## {title}"
        yield ""
        yield from _policies(names, runs[group], outcomes)
        yield ""
        yield from (_worth if group == "large" else _of_oracle)(runs[group], outcomes)
        yield ""
    yield "## Memory: accepted and observed risk"
    yield ""
    yield from _risks(runs["risk"], outcomes, exceeded)
    yield ""
    yield "## Growth with the number of nodes"
    yield ""
    yield "Times are CPU times: two simulations ran at once on two cores."
    yield ""
    yield from _growth(runs["growth"], outcomes)
    yield ""
    yield "## Load on a live controller"
    yield ""
    yield from _loads(loads)


def _policies(
    names: Mapping[str, str], runs: Sequence[Run], outcomes: Mapping[Run, Mapping[str, Any]]
) -> Iterator[str]:
    rows = []
    for policy, forecast in dict.fromkeys((run.policy, run.forecast) for run in runs):
        of = [
            outcomes[run] for run in runs if (run.policy, run.forecast) == (policy, forecast)
        ]  # fmt: skip
        rows.append(
            (
                names[policy],
                forecast,
                f"{mean(one['simulated_jobs'] for one in of):,.0f}",
                f"{_mean(of, 'average_jct_s') / HOUR_S:.2f} h",
                f"{_mean(of, 'best_effort_queue_s') / HOUR_S:.2f} h",
                f"{_mean(of, 'ended_in_a_day'):,.0f}",
                f"{_mean(of, 'slo_violation_rate'):.1%}",
                f"{_mean(of, 'avoidably_late_share'):.1%}",
                f"{_mean(of, 'preemptions'):,.0f}",
                f"{_mean(of, 'overflows'):,.0f}",
            )
        )
    yield from _table(
        ("policy", "forecasts", "jobs", "JCT mean", "best-effort jobs wait", "ended in the day",
         "SLO violated", "avoidably", "evictions", "out of memory"),
        rows,
    )  # fmt: skip


def _worth(runs: Sequence[Run], outcomes: Mapping[Run, Mapping[str, Any]]) -> Iterator[str]:
    """Return the value of sharing and figures of quality of service; runs are as in POLICIES."""
    looks, never, exclusive = (outcomes[run] for run in runs)

    def less(name: str) -> float:
        return float(1 - looks[name] / exclusive[name])

    yield (
        f"Compared with exclusive devices, the mean JCT is {less('average_jct_s'):.0%} shorter, "
        f"best-effort jobs wait {less('best_effort_queue_s'):.0%} less, and "
        f"{looks['ended_in_a_day'] - exclusive['ended_in_a_day']:,} more jobs end within the day. "
        f"Without SLO checks, {never['avoidably_late_share']:.1%} of the latency-sensitive jobs "
        f"that could meet their SLO violate it; with checks, {looks['avoidably_late_share']:.1%}. "
        f"The checks cost {looks['preemptions'] - never['preemptions']:,} more evictions of "
        f"best-effort jobs and {looks['average_jct_s'] / never['average_jct_s'] - 1:.0%} more JCT. "
        f"The predicted run time was too short for {looks['promised_in_vain_share']:.1%} of the "
        "latency-sensitive jobs; no scheduler can meet their SLO."
    )


def _of_oracle(runs: Sequence[Run], outcomes: Mapping[Run, Mapping[str, Any]]) -> Iterator[str]:
    late_by = mean(outcomes[run]["late_by_median"] for run in runs if run.forecast == "oracle")
    yield (
        "The oracle's SLO is the exact solo run time, so every job that is slowed by others "
        f"violates it, half of them by less than {late_by:.1%}. A forecast gives an upper bound."
    )


def _risks(
    runs: Sequence[Run],
    outcomes: Mapping[Run, Mapping[str, Any]],
    exceeded: Mapping[float, tuple[int, int]],
) -> Iterator[str]:
    rows = []
    for risk in dict.fromkeys(run.risk for run in runs):
        of = [outcomes[run] for run in runs if run.risk == risk]
        overflowed = mean(one["overflows"] / one["simulated_jobs"] for one in of)
        above, kinds = exceeded[risk]
        taken = f"{_mean(of, 'memory_exceeded_rate'):.1%}"
        rows.append((f"{risk:.0%}", f"{above} of {kinds}", taken, f"{overflowed:.2%}"))
    yield from _table(
        ("accepted risk", "kinds of jobs above the bound", "jobs above the bound",
         "out of memory, per job"),
        rows,
    )  # fmt: skip
    yield ""
    yield (
        "A bound has its nominal risk for jobs like those in the training data; these jobs are of "
        "other families. Either all jobs of a kind exceed the bound or none, and a day's jobs are "
        "of few kinds. A job that exceeds its bound runs out of memory only if the device is full; "
        "otherwise it takes memory that other jobs do not use."
    )


def _growth(runs: Sequence[Run], outcomes: Mapping[Run, Mapping[str, Any]]) -> Iterator[str]:
    rows = []
    for run in runs:
        of = outcomes[run]
        rows.append(
            (
                f"{run.nodes:,}",
                f"{of['simulated_jobs']:,}",
                f"{of['decisions']:,}",
                f"{1e3 * of['decision_median_s']:.2f} ms",
                f"{1e3 * of['decision_p99_s']:.1f} ms",
                f"{1e3 * of['decision_max_s']:.0f} ms",
                f"{of['seconds']:,.0f} s",
            )
        )
    yield from _table(
        ("nodes", "jobs", "decisions", "median", "99 %", "slowest", "whole simulation"), rows
    )


def _loads(loads: Sequence[Mapping[str, float]]) -> Iterator[str]:
    yield (
        "A real controller with its journal in SQLite runs on one core, and simulated nodes, which "
        "only send reports, on another. *Heartbeats*: every node reports every 5 s. *Reports*: "
        "every node reports as soon as its last report is answered."
    )
    yield ""
    rows = [
        (
            f"{of['nodes']:,.0f}",
            f"{of['submitted_per_s']:,.0f}",
            f"{of['placed_per_s']:,.0f}",
            f"{1e3 * of['decision_median_s']:.1f} ms",
            f"{1e3 * of['decision_max_s']:.0f} ms",
            f"{of['idle']:.0%}",
            f"{of['reports_per_s']:,.0f}",
            f"{of['nodes_core']:.0%}",
        )
        for of in loads
    ]
    yield from _table(
        ("nodes", "jobs submitted/s", "jobs placed/s", "decision, median", "slowest",
         "CPU of heartbeats", "reports/s", "CPU of the nodes at these reports"),
        rows,
    )  # fmt: skip


def _mean(of: Sequence[Mapping[str, Any]], name: str) -> float:
    return mean(one[name] or 0.0 for one in of)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
