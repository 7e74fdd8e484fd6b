"""What holds for every elastic job, checked from its journal and from what its workers logged."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from presage.training.data_set_grouping import Cursor, DataSet, shard_bounds
from tests.training.support.job import Job
from tests.training.support.worker_process import SAMPLES, train


@cache
def _reference(options: tuple[tuple[str, Any], ...]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    return train(dict(options), rows.append), rows


def uninterrupted(**options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the result and the steps of the same job on one worker, in this process."""
    return _reference(tuple(sorted(options.items())))


def check_exactly_once(job: Job, *, batch: int = 12, epochs: int = 3, samples: int = SAMPLES):
    """Each sample of each epoch is committed once: by the journal, and in the workers' logs."""
    records = job.records()
    generations = [r for r in records if r["type"] == "generation"]
    committed = [Cursor.from_message(r["cursor"]) for r in records if r["type"] == "formed"]
    assert committed == sorted(committed), "a committed cursor went back"
    assert [g["generation"] for g in generations] == list(range(1, len(generations) + 1))
    rows: dict[tuple[int, int], list[list[int]]] = {}
    for name in job.workers:
        for row in job.rows(name):
            if row["committed"]:
                rows.setdefault((row["generation"], row["step"]), []).append(row["indices"])

    data_set, cursor = DataSet(samples, 7), Cursor()
    while cursor.epoch < epochs:
        # Of two generations that reach a step, the later one committed it.
        owner = max(
            (g for g in generations if g["cursor"]["step"] <= cursor.step),
            key=lambda g: g["generation"],
        )
        expected = data_set.batch(cursor, batch).tolist()
        found = rows.get((owner["generation"], cursor.step), [])
        shards = [expected[a:b] for a, b in shard_bounds(len(expected), len(owner["members"]))]
        assert found, f"step {cursor.step} was taken by no worker of its generation"
        assert len(found) <= len(shards)
        for indices in found:  # a worker that was killed may not have logged its shard
            shards.remove(indices)
        cursor = data_set.after(cursor, batch)
    done = [r for r in records if r["type"] == "done"]
    assert [Cursor.from_message(r["cursor"]) for r in done] == [cursor]


def check_equals_uninterrupted(job: Job, **options: Any) -> None:
    """Losses and parameters are those of the same job on one worker, to 1e-4."""
    result, steps = uninterrupted(**options)
    losses = {row["step"]: row["loss"] for row in steps}
    finished = {name: one for name, one in job.results().items() if "error" not in one}
    for name, one in finished.items():
        if one["step"] == result["step"]:
            assert one["parameters"] == pytest.approx(result["parameters"], rel=1e-3, abs=1e-3)
            for key in ("moments", "lr", "scheduler", "epoch"):
                assert one[key] == result[key], key
        for row in job.rows(name):
            assert row["loss"] == pytest.approx(losses[row["step"]], rel=1e-4, abs=1e-6)


def sizes(job: Job) -> list[int]:
    return [len(r["members"]) for r in job.records() if r["type"] == "generation"]
