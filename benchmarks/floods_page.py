"""The page of the flood benchmark, from its results."""

# ruff: noqa: E501 - lines of a page

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

RATIO, GROWTH_MIB = 2.0, 150  # the bars: at most, and less than

_BEGIN = """# Floods without a token

Written by `python benchmarks/floods.py`. Each server is a process of its own and is flooded by another
process, which has no token. A third one is the honest client. It asks once every 5 ms at most, one request
after another, and is measured:

- **quiet**: before and after each flood, for {seconds:g} s each
- **pushed**: while the flood is sent as fast as the server takes it. What the server ends is begun again at once
- **held**: while the flood stays open, and nothing is sent but new half-open calls and connections in place of
  those that the server has ended, each at most once in 10 s

A ratio is the median latency of a phase over the mean of the two quiet medians around it; the tables show the
median of {rounds} rounds. Latencies are of all rounds together. Errors are those of all honest requests, after the
client's own retries. Memory is the peak of the server's resident memory over all rounds, above what it had before
the first flood.

**The bars: no errors, at most {ratio:g} times the median latency while a flood is held, less than {growth} MiB.**
Server, flooder and honest client share {cores} cores with other work (load average {loads} at the beginning of each server's
run): while bytes are pushed the three compete for the cores, so that phase has no bar.

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
Bodies are sent by half. *Begun* and *MiB/s* are what the flooder reached while it pushed.

*Floor* is what the same bytes a second cost the honest client when they go to another process, which only discards
them. It is measured where the pushed ratio is above {ratio:g} and the flood has bytes to speak of.

## What this does not show

- A flood of short calls that are refused at once. While it is pushed it costs the honest client what as many honest calls
  would: they are answered in turn. See the pushed ratio of the first flood with tokens and of the controller, and limit the rate of
  new calls in front of a server that strangers can reach.
- Flooders on other machines, on faster networks, or from many addresses.
- Memory is bounded by a check every 10 ms. On a machine whose cores are taken by other work the check comes late, and a
  flood on loopback can put more than the bar into the time between.
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
        where, errors = f"{server}, {flood}", row["pushed"]["errors"] + row["held"]["errors"]
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
    return "\n".join([*lines, _NOTES.format(ratio=RATIO)])


def _verdict(results: Mapping[str, Any]) -> str:
    worst_held = max(row["held"]["ratio"] for *_, row in rows(results))
    worst_mib = max(row["growth_mib"] for *_, row in rows(results))
    requests = sum(row[p]["requests"] for *_, row in rows(results) for p in ("pushed", "held"))
    past = missed(results)
    said = "All bars are met" if not past else f"**Missed: {'; '.join(past)}**"
    return (
        f"{said}. The highest held ratio is {worst_held:.2f}, the highest growth {worst_mib:.0f} MiB; "
        f"{requests:,} honest requests were made under floods."
    )


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
        "| flood | errors | held: ratio | p50 ms | p99 ms | pushed: ratio | p50 ms | p99 ms | floor "
        "| begun/s | MiB/s | open at the end | memory MiB |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for flood, row in result["floods"].items():
        if flood == "quiet":
            continue
        phases = [
            f"{row[p]['ratio']:.2f} | {row[p]['p50_ms']:.2f} | {row[p]['p99_ms']:.1f}"
            for p in ("held", "pushed")
        ]
        floor = f"{row['floor']['ratio']:.2f}" if "floor" in row else ""
        yield (
            f"| {flood} | {row['pushed']['errors'] + row['held']['errors']} | {' | '.join(phases)} "
            f"| {floor} | {row['begun_per_s']:,.0f} | {row['mib_per_s']:,.0f} | {row['open']:,.0f} "
            f"| {row['growth_mib']:.0f} |"
        )
