"""The page of the history checker, from the results of its seeds."""

# ruff: noqa: E501 - lines of a page

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.history.checker.laws import LAWS
from tests.history.runner.faults import Faults

_BEGIN = """# Histories of a live cluster, checked

Random faults hit a live cluster while clients use it. What clients asked and were answered, and
what jobs did, is recorded, and the record alone is checked against laws, as
[Jepsen](https://jepsen.io) does. This page is written by `benchmarks/cluster_history`.

```console
$ pytest tests/history                                  # the laws, and a run of 15 faults: 20 s
$ PRESAGE_TEST_FAULTS=all pytest tests/history          # and one of 80 faults, as root: 2 min
$ python -m benchmarks.cluster_history                  # 20 seeds of 110 faults, as root: 35 min
$ python -m benchmarks.cluster_history --first 7 --seeds 1 --output /tmp/again    # one seed again
```

A seed draws kinds, targets and durations of faults; the moments are the machine's, so a seed that
is run again gives a similar history, not the same. A history that breaks a law is kept in `--output`.

## Results
"""

_SETUP = """## What runs

A controller, three agents with two devices each, and their shims and jobs, as processes that users
start, with `--lease-s {lease_s:g}`. {clients} clients submit jobs (alone and in pairs, and the same ones again),
cancel, list, explain, drain and undrain; each has a connection of its own, and a time limit of 2 s,
after which the outcome of its request is unknown. {watchers} watchers follow the journal. Jobs take
0.5 to 4 s, save on request or every five steps, and append to a ledger at their begin, each step and
their end, with the machine's time since its start. Some fail, run out of memory, ignore SIGTERM, or
leave a child in a session of its own, which writes to the ledger too. A new fault begins every
{gaps} s on average, for up to half a lease, for 1.1 to 1.8 leases, or until the controller gives
the node up (lease, grace and 10 s). Faults overlap. In the end all is healed, every job has to be
over within 240 s, and everything is read again.

Packets are lost between network namespaces, by a wrong neighbour's address, in either direction or
both; links are slowed, held and reset by a relay in user space, for the kernel has no `netem`. Wall
clocks of single components are moved by a library in front of `clock_gettime`. Disks are small
file systems in memory.
"""

_FOUND = """## What was found, and fixed

| seed of the first trials | what happened | cause |
|---|---|---|
| 101 | a job stayed PLACED for good, and could not be cancelled | its shim was killed while its node's disk was full, before it could note that it starts the job; the agent took the task for one that runs, and never launched it again |
| 104 | a latency-sensitive job stayed PAUSED for good | its use was counted before it reported progress, and not again while it was paused: the mean that has to fall never did |
| none: by reading, for `strand_shim` | two attempts at once | a shim that is stopped cannot end its job when the lease is over; now its agent kills such a shim before the controller gives the node up |

Each has a regression test in `tests/schedulers/live/agent`. The results above are of the program with
these fixes.
"""

_NOT_TRIED = """## What was not tried

- **Agent and shim gone at once, with a child of the job in another session.** Nothing on the node is
  then left to end that child when the lease is over: shims are not killed or stopped while their
  agent is killed or stopped, nor in the two seconds before. A shim that is stopped while its agent
  stays dead or stopped beyond the lease is the same case.
- **Nodes that go to a controller on a copy of the journal.** The copy has the same cluster id, so
  agents would obey it, and both would start attempts. A rival on a copy ran beside the first one,
  and tried to listen at its address; no node was led to it. Never start a controller on a copy while
  the first one may live.
- A loss of power, with what the disk had not yet written; a disk that fails, or returns other
  bytes than were written; memory that runs out on the machine itself.
- Clocks: the machine's own, time namespaces, and a clock of the machine's start that differs
  between nodes. Wall clocks jumped by whole hours only; none drifted.
- Networks: duplicated or reordered packets, loss of a part of them; a real second machine.
- PostgreSQL as the journal; tokens and encryption; GPUs; forecasts, and so jobs that share a device;
  the policies other than `sharing`.
- Journals of more than some hundred entries, snapshots and what is forgotten: runs are short.
- Several jobs read at once are checked one by one, against the journal and in their order of time,
  not as one transaction.
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
received, {total("ledger_lines"):,} lines of jobs. {sum(one["ran_s"] for one in results) / 60:.0f} minutes on \
{results[0]["cores"]} cores beside other work, {results[0]["began"]}, commit {commits}. Components that ended by \
themselves: {_ended(results)}.
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
    rows = ["| fault | times | what is done |", "|---|---:|---|"]
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
    rows = ["## The laws", "", "| law | what it says |", "|---|---|"]
    rows += [
        f"| {name} | {' '.join((inspect.getdoc(law) or '').split())} |"
        for name, law in LAWS.items()
    ]
    return "\n".join(rows) + (
        "\n\nLinearizability is decided by a search over all orders, for each job and each node apart"
        " (`tests/history/checker/linearizable.py`), which a test compares with brute force. For every law"
        " `tests/history/checker/test_laws.py` has histories that break it, and have to be caught. No law"
        " depends on how fast the machine is: bounds are of leases, and SLACK_S is the 10 s that the"
        " controller itself allows a node beyond lease and grace.\n"
    )


def _docstring(of: type, name: str) -> str:
    return " ".join((getattr(of, name).__doc__ or "").split())
