"""All configurations that are explored in CI. Two jobs, a and b, of two ranks unless stated."""

from __future__ import annotations

from tests.collectives.explorer.configuration import Configuration

A = {"a": "II", "b": "RR"}
B = {"a": "RR", "b": "II"}
BOTH = {"a": "II", "b": "II"}  # as after wrong predictions: both at the switch at once
ONLY_B = {"b": "II"}
ONE = {"a": 2}

SMALL = (
    *(
        config
        for protocol in ("in_band", "two_phase")
        for config in (
            Configuration(f"{protocol}, one job, first view", protocol, ({"a": "II"},), {}, ONE),
            Configuration(
                f"{protocol}, one job, revoked", protocol, ({"a": "RR"},), {"a": "II"}, ONE, early=0
            ),
            Configuration(f"{protocol}, calm", protocol, (B,), A, early=None),
        )
    ),
    Configuration("in_band, collisions", "in_band", (), BOTH, early=0),
)


IN_BAND = (
    *(
        Configuration(f"in_band, {fault}", "in_band", (B,), A, fault=fault, early=0)
        for fault in ("none", "loss", "duplicate", "rank", "controller", "switch")
    ),
    Configuration("in_band, first views", "in_band", (A,), early=0),
    Configuration("in_band, a dead job leaves", "in_band", (ONLY_B,), A, fault="rank", early=0),
    Configuration("in_band, there and back", "in_band", (B, A), A, early=0),
    Configuration("in_band, collisions, two slots", "in_band", (BOTH,), A, slots=2, early=0),
    Configuration("in_band, early time-out", "in_band", (B,), A, early=1),
    *(
        Configuration(f"in_band, {fault}, early time-out", "in_band", (B,), A, fault=fault, early=1)
        for fault in ("rank", "controller")
    ),
    Configuration("in_band, two losses", "in_band", (B,), A, fault="loss", faults=2, early=0),
    Configuration("in_band, two restarts", "in_band", (B,), A, fault="switch", faults=2, early=0),
    Configuration(
        "in_band, three AllReduces",
        "in_band",
        ({"a": "RRR", "b": "III"},),
        {"a": "III", "b": "RRR"},
        numbers=3,
        early=0,
    ),
    Configuration(
        "in_band, one job, early time-outs",
        "in_band",
        ({"a": "IR"},),
        {"a": "II"},
        {"a": 2},
        early=4,
    ),
    Configuration(
        "in_band, one job of 3 ranks", "in_band", ({"a": "IR"},), {"a": "II"}, {"a": 3}, early=0
    ),
)
TWO_PHASE = (
    *(
        Configuration(f"two_phase, {fault}", "two_phase", (B,), A, fault=fault, early=0)
        for fault in ("none", "loss", "duplicate", "rank", "controller", "switch")
    ),
    Configuration("two_phase, a dead job leaves", "two_phase", (ONLY_B,), A, fault="rank", early=0),
    Configuration(
        "two_phase, a job dies in a round and leaves",
        "two_phase",
        (B, ONLY_B),
        A,
        {"a": 2, "b": 1},
        fault="rank",
        early=0,
    ),
    Configuration("two_phase, first views", "two_phase", (A,), early=0),
    Configuration("two_phase, early time-out, one try", "two_phase", (B,), A, early=1, tries=1),
    Configuration(
        "two_phase, one job, early time-outs",
        "two_phase",
        ({"a": "IR"},),
        {"a": "II"},
        {"a": 2},
        early=2,
    ),
    Configuration(
        "two_phase, one job of 3 ranks",
        "two_phase",
        ({"a": "IR"},),
        {"a": "II"},
        {"a": 3},
        early=1,
        tries=1,
        numbers=1,
    ),
)
