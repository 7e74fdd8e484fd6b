"""File of samples: bounded, monotonic, durable, and set aside when it is damaged."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.schedulers.live.controller.history.history_file import (
    FILE_BYTES,
    ROW_BYTES,
    ROWS,
    HistoryFile,
    Row,
    open_history,
)
from presage.schedulers.live.controller.history.history_sample import Sample
from presage.serving.server.log import LOGGER

NOW = 29_000_000  # minutes


@pytest.fixture(autouse=True)
def propagated(monkeypatch):
    monkeypatch.setattr(logging.getLogger(LOGGER), "propagate", True)


def row(minute, waiting=1.0):
    return Row(minute, Sample(devices=4.0, waiting_jobs=waiting))


def opened(path):
    file = open_history(path)
    assert file is not None
    return file


def everything(file):
    return file.read(0, 10**12)


steps = st.one_of(
    st.integers(0, 5), st.integers(-5, 5), st.integers(ROWS - 3, ROWS + 3), st.integers(-9999, 0)
)


@settings(max_examples=8, deadline=None)
@given(moves=st.lists(steps, max_size=12))
def test_minutes_increase_and_the_file_never_grows_for_any_clock(tmp_path_factory, moves):
    path = tmp_path_factory.mktemp("law") / "history"
    minute = NOW
    slots: dict[int, tuple[int, int]] = {}
    with HistoryFile(path) as file:
        for number, move in enumerate(moves):
            minute += move
            slots = {slot: one for slot, one in slots.items() if one[0] <= minute}
            last = max((one[0] for one in slots.values()), default=-1)
            assert file.append(row(minute, number)) == (minute > last)
            if minute > last:
                slots[minute % ROWS] = (minute, number)
        found = everything(file)
    assert path.stat().st_size == FILE_BYTES
    last = max((one[0] for one in slots.values()), default=0)
    expected = dict(one for one in slots.values() if one[0] > last - ROWS)
    assert [one.minute for one in found] == sorted(expected)
    assert {one.minute: one.sample.waiting_jobs for one in found} == expected
    with HistoryFile(path) as again:
        assert everything(again) == found


def test_a_week_takes_this_space_and_the_oldest_minute_goes_first(tmp_path):
    path = tmp_path / "history"
    with HistoryFile(path) as file:
        for minute in range(NOW, NOW + ROWS + 2):
            file.append(row(minute))
        found = everything(file)
    assert (len(found), found[0].minute) == (ROWS, NOW + 2)
    assert path.stat().st_size == FILE_BYTES < 1_400_000
    assert path.stat().st_mode & 0o077 == 0


WRITER = """
import sys, time
from pathlib import Path
from presage.schedulers.live.controller.history.history_file import HistoryFile, Row
from presage.schedulers.live.controller.history.history_sample import Sample
file = HistoryFile(Path(sys.argv[1]))
for minute in range(100, 105):
    file.append(Row(minute, Sample(devices=minute)))
print("written", flush=True)
time.sleep(60)
"""


def test_all_written_minutes_survive_kill_9(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "history")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        os.kill(writer.pid, signal.SIGKILL)
    with HistoryFile(tmp_path / "history") as file:
        assert [one.minute for one in everything(file)] == [100, 101, 102, 103, 104]


@pytest.mark.parametrize(
    "content", [b"", b"not a history", bytes(FILE_BYTES), bytes(FILE_BYTES + 1)]
)
def test_a_damaged_file_is_set_aside_with_one_line(tmp_path, caplog, content):
    path = tmp_path / "history"
    path.write_bytes(content)
    with opened(path) as file:
        assert everything(file) == []
        assert file.append(row(NOW))
    assert [record.message for record in caplog.records] == ["history set aside"]
    assert path.with_name("history.damaged").read_bytes() == content


@settings(max_examples=10, deadline=None)
@given(at=st.integers(0, FILE_BYTES - 1), length=st.integers(1, 5000), seed=st.binary(min_size=1))
def test_any_damage_costs_the_damaged_rows_only_or_sets_the_file_aside(
    tmp_path_factory, at, length, seed
):
    path = tmp_path_factory.mktemp("damage") / "history"
    with HistoryFile(path) as file:
        for minute in range(NOW, NOW + 200):
            file.append(row(minute, minute - NOW))
    content = bytearray(path.read_bytes())
    noise = (seed * length)[:length]
    content[at : at + length] = noise[: len(content) - at]
    path.write_bytes(content)
    with opened(path) as file:
        found = everything(file)
        assert all(one == row(one.minute, one.minute - NOW) for one in found)
        if path.with_name("history.damaged").exists():
            assert found == []
        else:
            assert len(found) >= 200 - length // ROW_BYTES - 2
        assert file.append(row(NOW + 1000))


def test_rows_that_a_power_failure_damaged_are_removed(tmp_path, caplog):
    path = tmp_path / "history"
    with HistoryFile(path) as file:
        for minute in range(ROWS, ROWS + 50):
            file.append(row(minute))
    with path.open("r+b") as damaged:
        damaged.seek(FILE_BYTES - ROWS * ROW_BYTES + 40 * ROW_BYTES + 10)
        damaged.write(b"\xff" * ROW_BYTES)
    with HistoryFile(path) as file:
        found = [one.minute - ROWS for one in everything(file)]
    assert found == [*range(40), *range(42, 50)]
    assert [record.message for record in caplog.records] == ["history: damaged rows removed"]
    with HistoryFile(path) as file:
        assert len(everything(file)) == 48


def test_a_file_that_cannot_be_created_is_logged(tmp_path, caplog):
    assert open_history(tmp_path) is None
    assert open_history(tmp_path / "none" / "history") is None
    assert [record.message for record in caplog.records] == ["no history", "no history"]
