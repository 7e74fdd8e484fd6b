"""The page of benchmarks/sharing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.sharing.runs import DEVICES_OF_A_NODE, RESTART_S, URGENT, Run

HOUR_S = 3600.0

INTRODUCTION = """\
# Sharing with quality of service, at scale

By `python -m benchmarks.sharing`. A day of Philly's jobs, those of half a day at most, that ask for
as many device-seconds as the cluster has in a day; {urgent:.0%} of the jobs that need one device
are latency-sensitive. Nodes have {devices} devices of an RTX 3090's memory. Ground truth is what
Lucid measured of 44 training jobs alone and in pairs; forecasts are by releases that learnt from
other families of jobs on the same card. Beside others a job gets the compute that it was granted,
and no more. To be started again costs {restart_s:g} s.

*Late* are latency-sensitive jobs that took longer, from their first start to their end, than they
were promised when they started; *avoidably* late those of them that would have been in time alone
on a device: of the others too little was foretold.
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
    yield "## Memory: risk promised and observed"
    yield ""
    yield from _risks(runs["risk"], outcomes, exceeded)
    yield ""
    yield "## How it grows"
    yield ""
    yield "Times are of the processor: two simulations ran at once on two cores."
    yield ""
    yield from _growth(runs["growth"], outcomes)
    yield ""
    yield "## What a live controller bears"
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
         "late", "avoidably", "sent away", "out of memory"),
        rows,
    )  # fmt: skip


def _worth(runs: Sequence[Run], outcomes: Mapping[Run, Mapping[str, Any]]) -> Iterator[str]:
    """Return the value of sharing and figures of quality of service; runs are as in POLICIES."""
    looks, never, exclusive = (outcomes[run] for run in runs)

    def less(name: str) -> float:
        return float(1 - looks[name] / exclusive[name])

    yield (
        f"Against whole devices jobs are done {less('average_jct_s'):.0%} sooner in the mean, "
        f"best-effort ones wait {less('best_effort_queue_s'):.0%} less, and "
        f"{looks['ended_in_a_day'] - exclusive['ended_in_a_day']:,} more end within the day. "
        f"Without a look at their quality of service {never['avoidably_late_share']:.1%} of the "
        "latency-sensitive jobs that could be in time are late; with it "
        f"{looks['avoidably_late_share']:.1%}. That costs: "
        f"{looks['preemptions'] - never['preemptions']:,} more times a best-effort job is sent "
        f"away, and JCT is {looks['average_jct_s'] / never['average_jct_s'] - 1:.0%} longer. Too "
        f"little was foretold of {looks['promised_in_vain_share']:.1%}: no scheduler can be in "
        "time for these."
    )


def _of_oracle(runs: Sequence[Run], outcomes: Mapping[Run, Mapping[str, Any]]) -> Iterator[str]:
    late_by = mean(outcomes[run]["late_by_median"] for run in runs if run.forecast == "oracle")
    yield (
        "The oracle promises, to the second, what a job takes alone; whoever is beside another is "
        f"late then, half of them by less than {late_by:.1%}. A forecast promises an upper bound."
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
        ("risk promised", "kinds of jobs that take more", "jobs that took more",
         "out of memory, per job"),
        rows,
    )  # fmt: skip
    yield ""
    yield (
        "A bound is kept as promised for jobs like those that were learnt from; these are of other "
        "families. All jobs of a kind exceed it or none does, and a day's jobs are of few kinds. A "
        "job that exceeds it runs out of memory only where the device is full: it has the bounds "
        "of its neighbours beside it."
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
        "A real controller with its journal in SQLite, on one core, and nodes that only say what "
        "they should, on another. *Heartbeats*: every node reports each 5 s; *reports*: each does "
        "as soon as its last report was answered."
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
        ("nodes", "jobs taken a second", "placed a second", "decision, median", "slowest",
         "of a core, by heartbeats", "reports a second", "of the nodes' core then"),
        rows,
    )  # fmt: skip


def _mean(of: Sequence[Mapping[str, Any]], name: str) -> float:
    return mean(one[name] or 0.0 for one in of)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
