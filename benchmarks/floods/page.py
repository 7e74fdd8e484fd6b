"""The page of the flood benchmark, from its results."""

# ruff: noqa: E501 - lines of a page

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PHASES = ("pushed", "held", "renewed")
RATIO, GROWTH_MIB = 2.0, 150  # the bars: at most, and less than

_BEGIN = """# Floods without a token

Written by `python -m benchmarks.floods`. Each server is a process of its own and is flooded by another
process, which has no token. A third one is the honest client. It asks once every 5 ms at most, one request
after another, and is measured:

- **quiet**: before and after each flood, for {seconds:g} s each
- **pushed**: while the flood is sent once, as fast as the server takes it
- **held**: while the flood stays open, and nothing is sent but new half-open calls and connections in place of
  those that the server has ended, each at most once in 10 s
- **renewed**: while the flooder sends again at once whatever the server ends

A ratio is the median latency of a phase over the mean of the two quiet medians around it; the tables show the
median of {rounds} rounds. Percentiles are of all rounds together. Memory is the highest peak of the server's resident
memory, above what it had before the first flood: one server bears all floods of all rounds.

**The bars, until a flood is no longer held: no error of an honest request, at most {ratio:g} times the median latency while it
is held, less than {growth} MiB.** Server, flooder and honest client share {cores} cores with other work (load average {loads}
at the beginning of each server's run). While bytes are sent the three compete for the cores, so the latencies of *pushed* and
*renewed* have no bar. A renewed flood is more than the bars ask for; its figures are shown beside.

{verdict}
"""

_NOTES = """## What is flooded

| server | the honest client asks |
|---|---|
| `presage serve` with the pretrained release | `Predict` of one job on one device, on one connection |
| `presage cluster controller` with four jobs | `List`, on one connection |
| `presage kubernetes extender` with two nodes | `POST /filter`, on a new connection each time |

*Open to this machine* is a server without tokens and encryption, on loopback. Half-open calls are headers without
a message (of `Predict`, of the controller's `Submit`), idle streams are open `PredictStream` or `Attach` calls without a
message, watches are `Health.Watch`: 12 connections with 250 calls each. With tokens, and for the controller's `Submit` and
`Attach` in any case, calls without a token are refused before their message is read, and only the watches stay open:
*open at the end* counts what the server still held when the held phase ended.

"250 x 4 MiB" are 250 messages of 4 MiB at once, each sent but for its last 100 bytes; "40 x 60 MiB" likewise.
Bodies are sent by half. *Begun* (calls or connections) and *MiB/s* are what the flooder reached while it renewed.

*Floor* is the ratio of latencies when the same bytes a second go to another process, which only discards them. It is
measured where the renewed ratio is above {ratio:g} and the flood has bytes to speak of. Where it is about 1, what the honest client
waits for is the server's own work on the flood, not the machine's.

## What this does not show

- Flooders on other machines, on faster networks, or from many addresses.

## What is not defended

- **Calls that are refused at once, in any number.** Thousands a second are answered in turn with the honest ones, which wait
  behind them: see *renewed* in the first row of the servers where calls are refused. Limit the rate of new calls in front of a
  server that strangers can reach.
- **The first instant of such a burst.** What waits is judged by the calls before it; an honest call among the first few
  hundred of thousands can be refused with RESOURCE_EXHAUSTED, and may be sent again.
- **Memory under renewed floods on a busy machine.** It is bounded by a check every 10 ms, and what was ended takes time to be
  freed. Where the server gets too little of the cores, more arrives in between than the {growth} MiB allow.
"""


def rows(results: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield server, flood and result."""
    for server, result in results.items():
        for flood, row in result["floods"].items():
            if flood != "quiet":
                yield server, flood, row


def missed(results: Mapping[str, Any]) -> list[str]:
    """Return which bars were missed, by server and flood."""
    found = []
    for server, flood, row in rows(results):
        where, errors = f"{server}, {flood}", _errors(row)
        if errors:
            found.append(f"{where}: {errors} errors")
        if row["held"]["ratio"] > RATIO:
            found.append(f"{where}: {row['held']['ratio']:.2f} times")
        if row["growth_mib"] >= GROWTH_MIB:
            found.append(f"{where}: {row['growth_mib']:.0f} MiB")
    return found


def page(results: Mapping[str, Any]) -> str:
    """Return the page."""
    first = next(iter(results.values()))
    lines = [
        _BEGIN.format(
            ratio=RATIO, growth=GROWTH_MIB, seconds=first["seconds"], rounds=first["rounds"],
            cores=first["cores"], verdict=_verdict(results),
            loads=", ".join(f"{one['load']:.1f}" for one in results.values()),
        )
    ]  # fmt: skip
    for server, result in results.items():
        lines += [*_table(server, result), ""]
    return "\n".join([*lines, _NOTES.format(ratio=RATIO, growth=GROWTH_MIB)])


def _verdict(results: Mapping[str, Any]) -> str:
    worst_held = max(row["held"]["ratio"] for *_, row in rows(results))
    worst_mib = max(row["growth_mib"] for *_, row in rows(results))
    requests = sum(row[p]["requests"] for *_, row in rows(results) for p in PHASES)
    past = missed(results)
    verdict = "All bars are met" if not past else f"**Missed: {'; '.join(past)}**"
    renewed_mib = max(row["renewed_growth_mib"] for *_, row in rows(results))
    errors = sum(row["renewed"]["errors"] for *_, row in rows(results))
    return (
        f"{verdict}. The highest held ratio is {worst_held:.2f}, the highest growth {worst_mib:.0f} MiB.\n"
        f"Under renewed floods the highest growth is {renewed_mib:.0f} MiB, and {errors} honest requests "
        f"failed.\n{requests:,} honest requests were answered under floods."
    )


def _errors(row: Mapping[str, Any]) -> int:
    return int(row["pushed"]["errors"]) + int(row["held"]["errors"])


def _table(server: str, result: Mapping[str, Any]) -> Iterator[str]:
    quiet = result["floods"]["quiet"]
    yield f"## {server[0].upper()}{server[1:]}"
    yield ""
    yield (
        f"Quiet: median {quiet['p50_ms']:.2f} ms, 99th percentile {quiet['p99_ms']:.1f} ms "
        f"of {quiet['requests']:,} requests. {result['date']}."
    )
    yield ""
    yield (
        "| flood | errors | held: ratio | p99 ms | memory MiB | open at the end | pushed: ratio | p99 ms "
        "| renewed: ratio | p99 ms | floor | errors | memory MiB | begun/s | MiB/s |"
    )
    yield f"|---{'|---:' * 14}|"
    for flood, row in result["floods"].items():
        if flood == "quiet":
            continue
        pushed, held, renewed = (f"{row[p]['ratio']:.2f} | {row[p]['p99_ms']:.0f}" for p in PHASES)
        floor = f"{row['floor']['ratio']:.2f}" if "floor" in row else ""
        yield (
            f"| {flood} | {_errors(row)} | {held} | {row['growth_mib']:.0f} | {row['open']:,.0f} "
            f"| {pushed} | {renewed} | {floor} | {row['renewed']['errors']} "
            f"| {row['renewed_growth_mib']:.0f} | {row['begun_per_s']:,.0f} | {row['mib_per_s']:,.0f} |"
        )
