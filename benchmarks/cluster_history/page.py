"""The page of the history checker, from the results of its seeds."""

# ruff: noqa: E501 - lines of a page

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.history.checker.laws import LAWS
from tests.history.runner.faults import Faults

_BEGIN = """# Checked histories of a live cluster

Random faults hit a live cluster while clients use it. The requests and responses of the clients and
the ledgers of the jobs are recorded. The record alone is checked against laws (invariants),
as [Jepsen](https://jepsen.io) does. This page is written by `benchmarks/cluster_history`.

```console
$ pytest tests/history                                  # the laws, and a run of 15 faults: 20 s
$ PRESAGE_TEST_FAULTS=all pytest tests/history          # and one of 80 faults, as root: 2 min
$ python -m benchmarks.cluster_history                  # 20 seeds of 110 faults, as root: 35 min
$ python -m benchmarks.cluster_history --first 7 --seeds 1 --output /tmp/again    # one seed again
```

A seed determines kinds, targets and durations of faults, but not the exact times, so a repeated
seed gives a similar history, not the same one. `--output` keeps each history that violates a law.

## Results
"""

_SETUP = """## Method

The cluster has a controller (`--lease-s {lease_s:g}`), three agents with two devices each, and
their shims and jobs, as processes that users start. {clients} clients submit jobs (single jobs,
pairs, and jobs submitted before), cancel, list, explain, drain and undrain. Each has its own
connection and a time limit of 2 s, after which the outcome of a request is unknown. {watchers}
watchers follow the journal.

Jobs take 0.5 to 4 s and write checkpoints on request or every five steps. They append to a ledger
at their start, at each step and at their end, with the machine's uptime. Some fail, run out of
memory, ignore SIGTERM, or leave a child in a session of its own, which writes to the ledger too.

A new fault starts every {gaps} s on average. It lasts up to half a lease, 1.1 to 1.8 leases, or
until the controller gives the node up (lease, grace and 10 s). Faults overlap. At the end all
faults are removed, every job must end within 240 s, and everything is read again.

Packets are dropped between network namespaces, by a wrong neighbour address, in one direction or
both. A relay in user space slows, holds and resets links, because the kernel has no `netem`. A
library in front of `clock_gettime` moves the wall clocks of single components. Disks are small file
systems in memory.
"""

_FOUND = """## Defects found

| seed of the first trials | effect | cause |
|---|---|---|
| 101 | a job stayed PLACED, and could not be cancelled | its shim was killed while the node's disk was full, before it recorded the start of the job; the agent took the task for a running one, and never launched it again |
| 104 | a latency-sensitive job stayed PAUSED | its use was counted before it reported progress, and not while it was paused, so the mean that has to fall never fell |
| none: found by reading the code, for `strand_shim` | two attempts at once | a stopped shim cannot end its job when the lease expires; now its agent kills such a shim before the controller gives the node up |

All are fixed, with a regression test in `tests/schedulers/live/agent`. The results above include
the fixes.
"""

_NOT_TRIED = """## Limits

Not tested:

- **Agent and shim killed at once, with a child of the job in another session.** No process on the
  node could end that child when the lease expires. Shims are therefore not killed or stopped while
  their agent is killed or stopped, nor in the two seconds before. A shim that is stopped while its
  agent stays dead or stopped beyond the lease is the same case.
- **Nodes that connect to a controller on a copy of the journal.** The copy has the same cluster id,
  so agents would follow it, and both controllers would start attempts. A rival on a copy ran next
  to the first one and tried to listen at its address, but no node connected to it. Never start a
  controller on a copy while the first one may be alive.
- A loss of power with unwritten data; a disk that fails, or returns wrong bytes; a machine that
  runs out of memory.
- Clocks: the machine's own, time namespaces, and uptimes that differ between nodes. Wall clocks
  jumped by whole hours only; none drifted.
- Networks: duplicated or reordered packets, partial loss; a real second machine.
- PostgreSQL as the journal; tokens and encryption; GPUs; forecasts, and so co-located jobs;
  policies other than `sharing`.
- Journals of more than a few hundred entries, snapshots and deletion of old records: runs are
  short.
- Reads of several jobs are checked job by job, against the journal and in their order of time, not
  as one transaction.
"""


def page(results: Sequence[dict[str, Any]]) -> str:
    """Return the page's text, for results in the order of their seeds."""
    if not results:
        return f"{_BEGIN}\nNo seed was run yet.\n"
    gaps = " or ".join(sorted({f"{one['settings']['gap_s']:g}" for one in results}))
    setup = _SETUP.format(**results[0]["settings"], gaps=gaps)
    parts = [_BEGIN, _totals(results), _by_fault(results), _by_seed(results), setup, _laws()]
    return "\n".join([*parts, _FOUND, _NOT_TRIED])


def _totals(results: Sequence[dict[str, Any]]) -> str:
    faults = sum(sum(one["faults"].values()) for one in results)
    broken = sum(len(one["violations"]) for one in results)
    operations: Counter[str] = Counter()
    for one in results:
        operations.update(one["operations"])

    def total(name: str) -> int:
        return sum(one[name] for one in results)

    commits = ", ".join(sorted({f"`{one['commit']}`" for one in results}))
    return f"""**{faults:,} faults over {len(results)} seeds: {broken or "no"} violations.** \
{sum(operations.values()):,} operations of clients ({operations["ok"]:,} acknowledged, \
{operations["fail"]:,} refused, {operations["unknown"]:,} of unknown outcome), {total("jobs"):,} jobs, \
{total("attempts"):,} attempts, {total("again"):,} jobs with more than one, \
{total("nodes_lost")} nodes given up, {total("entries"):,} journal entries, {total("events"):,} events \
received, {total("ledger_lines"):,} ledger lines of jobs. {sum(one["ran_s"] for one in results) / 60:.0f} minutes on \
{results[0]["cores"]} cores next to other load, {results[0]["began"]}, commit {commits}. Components that exited \
unexpectedly: {_ended(results)}.
"""


def _ended(results: Sequence[dict[str, Any]]) -> str:
    found = [note for one in results for note in one["notes"] if note[0] == "ended by itself"]
    if not found:
        return "none"
    kinds = Counter("controller" if note[1][0] == "controller" else "agent" for note in found)
    words = ", ".join(f"{name} {times} times" for name, times in sorted(kinds.items()))
    return f"{words}; they were started again"


def _by_fault(results: Sequence[dict[str, Any]]) -> str:
    counted: Counter[str] = Counter()
    for one in results:
        counted.update(one["faults"])
    rows = ["| fault | times | action |", "|---|---:|---|"]
    rows += [
        f"| `{kind}` | {counted[kind]} | {_docstring(Faults, kind)} |" for kind in Faults.KINDS
    ]
    return "\n".join(rows) + "\n"


def _by_seed(results: Sequence[dict[str, Any]]) -> str:
    names = ("seed", "faults", "operations", "unknown", "jobs", "attempts", "nodes given up")
    rows = [f"| {' | '.join((*names, 'violations', 's'))} |", "|" + "---:|" * (len(names) + 2)]
    for one in results:
        cells = [
            one["seed"], sum(one["faults"].values()), sum(one["operations"].values()),
            one["operations"].get("unknown", 0), one["jobs"], one["attempts"], one["nodes_lost"],
            len(one["violations"]), round(one["ran_s"]),
        ]  # fmt: skip
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows) + "\n"


def _laws() -> str:
    rows = ["## Laws", "", "| law | statement |", "|---|---|"]
    rows += [
        f"| {name} | {' '.join((inspect.getdoc(law) or '').split())} |"
        for name, law in LAWS.items()
    ]
    return "\n".join(rows) + (
        "\n\nLinearizability is checked by a search over all orders, separately for each job and each node"
        " (`tests/history/checker/linearizable.py`); a test compares it with brute force. For every law"
        " `tests/history/checker/test_laws.py` has histories that violate it and must be detected. No law"
        " depends on the speed of the machine: time limits come from leases, and SLACK_S is the 10 s that"
        " the controller allows a node beyond lease and grace.\n"
    )


def _docstring(of: type, name: str) -> str:
    return " ".join((getattr(of, name).__doc__ or "").split())
