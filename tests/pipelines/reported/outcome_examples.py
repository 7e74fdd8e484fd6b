"""Outcomes for tests, and logs that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from presage.features.device.device import Share
from presage.features.tables import schemas as tables
from presage.pipelines.reported.outcome_tables import TABLES
from presage.pipelines.reported.recency import DAY_S, Recency
from presage.pipelines.reported.withdrawn import Withdrawal
from presage.pipelines.stages.ingest import IngestResult, ingest
from presage.serving.codec.wire_outcomes import write_report
from presage.serving.outcomes.outcome import Outcome
from presage.serving.outcomes.outcome_log import OutcomeLog
from tests.features.examples import device, features, node

RECENCY = Recency(half_life_days=10, most_weight=4, newest_runs=3)
NOON_S = 1.75e9  # of the day that tests happen on
TURNS = Share(mode="time-slice")


def small_job(name: str = "mlp", run: str = "", **changes: Any):
    """Return a job of few operators; another name gives another job."""
    nodes = (node(flops=1_000_000 + len(name), parameters=ord(name[0])),)
    return features(*nodes, job_id=run or f"run of {name}", name=name, **changes)


def outcome(key: str, name: str = "mlp", *, age_days: float = 0.0, **changes: Any) -> Outcome:
    """Return an outcome of a solo job with all measurements, this many days before noon."""
    values: dict[str, Any] = {
        "idempotency_key": key,
        "job": small_job(name, run=f"run {key}"),
        "device": device(),
        "release_id": "0123456789abcdef",
        "finished_at_unix_s": NOON_S - age_days * DAY_S,
        "compute_utilization": 0.5,
        "memory_peak_bytes": 2**26,
        "step_time_median_s": 0.01,
        "runtime_s": 3.0,
    }
    return Outcome(**(values | changes))


def colocated_outcome(key: str, name: str, *others: str, **changes: Any) -> Outcome:
    """Return an outcome of a co-located job."""
    others_with_shares = tuple((small_job(other), TURNS) for other in others)
    return outcome(key, name, share=TURNS, colocated_jobs=others_with_shares, **changes)


def messages(outcomes: Sequence[Outcome]) -> list[tuple[str, bytes]]:
    """Return keys and bytes as a server appends them to its log."""
    rows = write_report(outcomes).outcomes
    return [(row.idempotency_key, row.SerializeToString(deterministic=True)) for row in rows]


def log_of(path: Path, outcomes: Sequence[Outcome], by: str = "agent") -> Path:
    """Write a server's log; outcomes of one list are received together."""
    return raw_log(path, messages(outcomes), by)


def raw_log(path: Path, rows: Sequence[tuple[str, bytes]], by: str = "agent") -> Path:
    with closing(OutcomeLog(path)) as log:
        log.append(rows, reported_by=by).result(timeout=30)
    return path


def ingested(
    folder: Path,
    *logs: Path,
    recency: Recency = RECENCY,
    withdrawals: Sequence[Withdrawal] = (),
) -> IngestResult:
    """Ingest without campaigns."""
    return ingest(
        logs, folder, recency=recency, withdrawals=withdrawals,
        profiles=folder.parent / "profiles", pretrained=None,
    )  # fmt: skip


def table(folder: Path, name: str) -> pd.DataFrame:
    rows: pd.DataFrame = tables.read(TABLES[name], folder / f"{name}.parquet").to_pandas()
    return rows


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def slower(row: Outcome, times: float) -> Outcome:
    assert row.step_time_median_s is not None
    return replace(row, step_time_median_s=row.step_time_median_s * times)
