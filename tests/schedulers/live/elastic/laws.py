"""Law of elastic jobs: by the journals of their leaders, each sample was committed once."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from presage.training.data_set_grouping import Cursor, DataSet, shard_bounds
from tests.schedulers.live.elastic.job import BATCH, SAMPLES, SEED


class Row(NamedTuple):
    """Step of a worker that it committed, as its job wrote it."""

    attempt: int
    worker: str
    pid: int
    generation: int
    step: int
    samples: list[int]


def rows_of(path: Path, job: str) -> list[Row]:
    """Return the rows that the workers of a job wrote."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        task, _, attempt = unquote(row["task"]).rpartition(".")
        name, _, worker = task.rpartition("/")
        if name == job:
            place = row["generation"], row["step"], row["samples"]
            rows.append(Row(int(attempt), worker, row["pid"], *place))
    return rows


class KeptJournals:
    """Links to the journals of leaders, which are removed when their attempts end."""

    def __init__(self, leaders: Path, kept: Path) -> None:
        self._leaders, self._kept = leaders, kept
        self._inodes: set[int] = set()
        self._over = threading.Event()
        kept.mkdir()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            for path in self._leaders.glob("*/*/*/journal.jsonl"):
                with suppress(OSError):
                    self._keep(path)

    def _keep(self, path: Path) -> None:
        inode = path.stat().st_ino
        if inode not in self._inodes:
            name = f"{len(self._inodes):03}.{path.parents[1].name}"
            os.link(path, self._kept / name)
            self._inodes.add(inode)

    def of(self, number: int) -> list[tuple[int, list[dict[str, Any]]]]:
        """Return attempt and records of each journal of the job with a number, in their order."""
        found = []
        for path in sorted(self._kept.iterdir()):
            _, job, attempt = path.name.split(".")
            if int(job) == number:
                lines = path.read_text().split("\n")[:-1]
                found.append((int(attempt), [json.loads(line) for line in lines]))
        return found

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()


class _Owner(NamedTuple):
    """Generation that committed the steps from ``step`` on."""

    step: int
    attempt: int
    generation: int
    size: int
    receivers: frozenset[str]
    names: frozenset[str]


def _owners(journals: Sequence[tuple[int, list[dict[str, Any]]]]) -> list[_Owner]:
    """Return the generations whose steps were kept; a later one repeats those of an earlier one."""
    owners: list[_Owner] = []
    for attempt, records in journals:
        for record in records:
            if record["type"] in ("generation", "adopted"):
                step, names = record["cursor"]["step"], [name for name, *_ in record["members"]]
                owners = [one for one in owners if one.step < step]
                receivers, members = map(_names, (record["receivers"], names))
                size = len(names)
                owners.append(_Owner(step, attempt, record["generation"], size, receivers, members))
    return owners


def _names(worker_ids: Sequence[str]) -> frozenset[str]:
    return frozenset(one.rpartition(".")[0] for one in worker_ids)


def check_exactly_once(
    rows: Sequence[Row], journals: Sequence[tuple[int, list[dict[str, Any]]]], epochs: int
) -> int:
    """Check that each sample of each epoch was committed once; return the number of lost steps.

    A step is lost if a worker committed it and it was repeated: the worker was killed before any
    other one committed it, or the job continued from an older checkpoint.
    """
    owners = _owners(journals)
    assert owners, "no generation was journalled"
    assert owners[0].step == 0
    found: dict[tuple[int, int, int], list[list[int]]] = {}
    for row in rows:
        found.setdefault((row.attempt, row.generation, row.step), []).append(row.samples)
    data_set, cursor, taken = DataSet(SAMPLES, SEED), Cursor(), set()
    while cursor.epoch < epochs:
        owner = max((one for one in owners if one.step <= cursor.step), key=lambda one: one.step)
        key = owner.attempt, owner.generation, cursor.step
        expected = data_set.batch(cursor, BATCH).tolist()
        shards = [expected[a:b] for a, b in shard_bounds(len(expected), owner.size)]
        assert found.get(key), f"step {cursor.step} was committed by no worker of {owner}"
        for samples in found[key]:  # a worker that was killed may not have written its shard
            assert samples in shards, f"step {cursor.step}: {samples} is in none of {shards}"
            shards.remove(samples)
        taken.add(key)
        cursor = data_set.after(cursor, BATCH)
    done = [r["cursor"] for _, records in journals for r in records if r["type"] == "done"]
    assert [Cursor.from_message(one) for one in done] == [cursor]
    return len({step for *_, step in found.keys() - taken})
