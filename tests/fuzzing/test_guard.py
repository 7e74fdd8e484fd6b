"""What one input makes the process grow by is seen, whatever the inputs before it took."""

from __future__ import annotations

import pytest

from presage.errors import GraphError
from tests.fuzzing import guard
from tests.fuzzing.reader import Reader, Sample
from tests.fuzzing.readers import READERS


def test_memory_is_counted_separately_for_each_input(monkeypatch, tmp_path):
    reader = Reader(
        seeds=list,
        mutated=lambda sample, _others, _rng: sample,
        read=lambda path: b"\1" * (int(path.read_text()) << 20),
        refusals=(GraphError,),
    )
    monkeypatch.setitem(READERS, "greedy", reader)
    monkeypatch.setattr(guard, "MOST_BYTES", 64 << 20)
    if not guard.begin_peaks():
        pytest.skip("/proc/self/clear_refs cannot be written")

    faults = [
        guard.run_one("greedy", Sample("", str(mib).encode()), tmp_path).fault
        for mib in (96, 1, 96, 32)
    ]

    assert faults == ["memory: more than 64 MiB", "", "memory: more than 64 MiB", ""]
