"""The page of the flood benchmark, from its results."""

# ruff: noqa: E501 - lines of a page

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PHASES = ("pushed", "held", "renewed")
RATIO, GROWTH_MIB = 2.0, 150  # targets: at most, and less than

_BEGIN = """# Floods without a token

This benchmark measures how servers behave while a client without a token floods them. Written by
`python -m benchmarks.floods`. Server, flooder and honest client are separate processes. The honest
client sends one request after another, at most one every 5 ms. Its latency is measured in four
phases:

- **quiet**: before and after each flood, for {seconds:g} s each.
- **pushed**: while the flood is sent once, as fast as the server accepts it.
- **held**: while the flood stays open. The flooder only replaces half-open calls and connections
  that the server has closed, each at most once in 10 s.
- **renewed**: while the flooder immediately replaces everything that the server closes.

A ratio is the median latency of a phase over the mean of the two quiet medians around it. {rounds}
Memory is the peak of the server's resident memory above its size before the first flood; the same
server gets all floods.

**Targets, until the end of the held phase: no errors of honest requests, a held ratio of at most
{ratio:g}, and less than {growth} MiB.** Server, flooder and honest client share {cores} cores with
other load (load average {loads} at the beginning of each server's run). While bytes are sent, the
three compete for the cores, so the latencies of *pushed* and *renewed* have no target.

{verdict}
"""

_NOTES = """## Method

| server | request of the honest client |
|---|---|
| `presage serve` with the pretrained release | `Predict` of one job on one device, on one connection |
| `presage cluster controller` with four jobs | `List`, on one connection |
| `presage kubernetes extender` with two nodes | `POST /filter`, on a new connection each time |

- *Open to this machine* is a server without tokens and encryption, on loopback.
- Half-open calls are headers without a message (of `Predict`, or of the controller's `Submit`).
  Idle streams are open `PredictStream` or `Attach` calls without a message. Watches are
  `Health.Watch`. There are 12 connections with 250 calls each.
- With tokens, and always for the controller's `Submit` and `Attach`, calls without a token are
  rejected before their message is read, so only the watches stay open. *open at the end* counts
  what the server held when the held phase ended.
- "250 x 4 MiB" are 250 simultaneous messages of 4 MiB, each without its last 100 bytes;
  "40 x 60 MiB" likewise. Half of each body is sent.
- *begun/s* (calls or connections) and *MiB/s* are the flooder's rates in the renewed phase.
- *floor* is the ratio of latencies if the same bytes per second go to another process that discards
  them. It is measured if the renewed ratio is above {ratio:g} and the flood sends a significant
  number of bytes. If it is about 1, the latency comes from the server's work on the flood and not
  from the load of the machine.

## Limits

- Flooders on other machines, on faster networks, or with many addresses were not tested.
- **Any number of calls that are rejected at once.** Thousands per second are served in turn with
  honest requests, which wait behind them: see *renewed* in the first row of the servers that reject
  calls. Limit the rate of new calls in front of a server that untrusted clients can reach.
- **The beginning of such a burst.** Pending calls are judged by the calls before them; an honest
  call among the first few hundred of thousands can be rejected with RESOURCE_EXHAUSTED, and may be
  retried.
- **Memory under renewed floods on a busy machine.** A check every 10 ms limits it, and closed calls
  take time to be freed. If the server gets too little CPU time, more than the {growth} MiB can
  arrive in between.
"""


def rows(results: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield server, flood and result."""
    for server, result in results.items():
        for flood, row in result["floods"].items():
            if flood != "quiet":
                yield server, flood, row


def missed(results: Mapping[str, Any]) -> list[str]:
    """Return the missed targets, by server and flood."""
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
            ratio=RATIO, growth=GROWTH_MIB, seconds=first["seconds"], rounds=_rounds(first["rounds"]),
            cores=first["cores"], verdict=_verdict(results),
            loads=", ".join(f"{one['load']:.1f}" for one in results.values()),
        )
    ]  # fmt: skip
    for server, result in results.items():
        lines += [*_table(server, result), ""]
    return "\n".join([*lines, _NOTES.format(ratio=RATIO, growth=GROWTH_MIB)])


def _rounds(rounds: int) -> str:
    if rounds == 1:
        return "The tables have one round."
    return f"The tables show the median of {rounds} rounds; percentiles are over all rounds."


def _verdict(results: Mapping[str, Any]) -> str:
    worst_held = max(row["held"]["ratio"] for *_, row in rows(results))
    worst_mib = max(row["growth_mib"] for *_, row in rows(results))
    requests = sum(row[p]["requests"] for *_, row in rows(results) for p in PHASES)
    past = missed(results)
    met = "All targets are met until the end of the held phase"
    verdict = met if not past else f"**Missed: {'; '.join(past)}**"
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
