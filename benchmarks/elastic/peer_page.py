"""Section of the page docs/benchmarks/elastic.md that compares with torchrun and torchft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.elastic.bars import load_note, percentile, ratio
from benchmarks.elastic.peer_jobs import MONITOR_S, README_MS, RENDEZVOUS, SHORT_MS
from benchmarks.elastic.peer_workers import (
    GLOO_TIMEOUT_S,
    TORCHFT_GLOO_TIMEOUT_S,
    TORCHFT_HEARTBEAT_S,
    TORCHFT_TIMEOUT_S,
)
from benchmarks.elastic.peers import TIMEOUT_S

NAMES = {
    "presage": "Presage",
    "torchft": "torchft, short time-outs",
    "torchft_readme": "torchft, lighthouse of its README",
    "torchrun": "torchrun",
}
_KINDS = {"grow": "2 to 3 workers", "kill": "kill -9, 3 to 2 workers"}


def peer_section(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the section."""
    systems, versions = result["systems"], result["versions"]
    yield "## How do torchrun and torchft compare?"
    yield ""
    yield (
        f"The same model and data on gloo, with torchft {versions['torchft']} and torchrun of "
        f"PyTorch {versions['torchrun']}, in alternating turns. The pause is the time in which no "
        "step is committed, less the median step: from the last commit before a change, or from "
        f"the kill. A change that takes more than {TIMEOUT_S:g} s is a hang."
    )
    yield ""
    yield "| system | change | repeats | p50 ms | max ms | p50 over Presage's | hangs |"
    yield "|---|---|---|---|---|---|---|"
    for kind, change in _KINDS.items():
        for name, found in systems.items():
            yield _row(systems, name, kind, f"{NAMES[name]} | {change}", found)
    yield ""
    by_system = [
        f"{NAMES[name]} {min(one['load']):.1f} to {max(one['load']):.1f}"
        for name, one in systems.items()
    ]
    note = load_note([load for one in systems.values() for load in one["load"]])
    yield (f"{note} By system: {'; '.join(by_system)}.")
    yield ""
    yield from _host_kills(systems["torchrun"]["host_kills"])
    yield from _settings()


def _row(systems: Mapping[str, Any], name: str, kind: str, label: str, found: Any) -> str:
    values, hangs = found[kind], found[f"{kind}_hangs"]
    times = "- | -"
    if values:
        times = f"{percentile(values, 0.5) * 1000:.0f} | {max(values) * 1000:.0f}"
    over = ratio(systems, name, kind)
    shown = "-" if over is None else f"{over:.1f}" if over < 10 else f"{over:.0f}"
    return f"| {label} | {len(values) + hangs} | {times} | {shown} | {hangs} |"


def _host_kills(outcomes: Sequence[str]) -> Iterator[str]:
    counts = ", ".join(f"{outcome} in {count}" for outcome, count in Counter(outcomes).items())
    yield (
        "The first torchrun agent serves the rendezvous. After kill -9 of it and its worker, the "
        f"job of the other worker {counts or 'was not measured'} of {len(outcomes)} trials. The "
        "kills in the table are of other torchrun workers; those of Presage and torchft are of any "
        "worker."
    )
    yield ""


def _settings() -> Iterator[str]:
    yield "Settings:"
    yield ""
    yield (
        "- **Presage**: its defaults. Its workers fork from a process that has imported PyTorch, "
        "which saves time before they join, but none of the pause."
    )
    yield (
        "- **torchrun**: one agent for each worker, `--nnodes=1:3`, `--rdzv-backend=c10d`, "
        f"`--monitor-interval={MONITOR_S:g}`, `--rdzv-conf` with {_joined(RENDEZVOUS)}, "
        f"`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, and a gloo time-out of {GLOO_TIMEOUT_S:g} s. The "
        "first worker writes a snapshot after each step, so no step is lost. A change restarts all "
        "workers, so the pause includes the import of PyTorch. In a trial with "
        "`keep_alive_max_attempt=2`, a new agent counted the others as dead and trained alone."
    )
    yield (
        "- **torchft**: each worker is a replica group of one, `min_replica_size=1`, with an "
        f"asynchronous quorum, a heartbeat every {TORCHFT_HEARTBEAT_S * 1000:g} ms, and time-outs "
        f"of {TORCHFT_GLOO_TIMEOUT_S:g} s for gloo and {TORCHFT_TIMEOUT_S:g} s for the manager. "
        f"Lighthouse with short time-outs: {_joined(SHORT_MS)}. Lighthouse of its README: "
        f"{_joined(README_MS)}. In a trial with `join_timeout_ms=10` at a load of 9, 5 of "
        "10 changes took 4 to 12 s; in one with 1, a third replica did not join in 60 s."
    )
    yield (
        "- torchft sums gradients by `Manager.allreduce`. With its `DistributedDataParallel`, the "
        "job did not continue after 4 of 5 kills in trials: version 0.2.0 raises an "
        "`AssertionError` in `ddp.py` on all survivors if a sum fails while it waits. "
        "torchft-nightly 2026.10.26 has a correction, which was not tried."
    )
    yield ""


def _joined(settings: Mapping[str, int]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in settings.items())
