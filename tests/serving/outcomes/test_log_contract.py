"""Contract of an outcome log, in a file and in PostgreSQL: outcomes are stored exactly once."""

from __future__ import annotations

import itertools
import json
import random
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from presage.errors import OutcomeLogError
from presage.serving.outcomes.copied_log import copy_log
from presage.serving.outcomes.outcome_log import (
    Appended,
    OutcomeLog,
    read_outcomes,
    withdraw,
    withdrawn_keys,
)
from tests.serving.outcomes.log_support import append, keys, start
from tests.support.postgres import create_database, postgres, postgres_programs

KINDS = ["file", "PostgreSQL"]


@pytest.fixture(scope="module")
def database():
    """Return a function that returns the URL of a new database."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: no log in PostgreSQL")
    if postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed: no log in it")
    numbers = itertools.count()
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # PostgreSQL's user looks into it
        with postgres(Path(folder), "first") as url:
            yield lambda: create_database(url, f"log{next(numbers)}")


@pytest.fixture(params=KINDS)
def address(request, tmp_path):
    if request.param == "file":
        return tmp_path / "outcomes" / "log.db"
    return request.getfixturevalue("database")()


@pytest.fixture
def log(address):
    with closing(OutcomeLog(address)) as opened:
        yield opened


def test_outcomes_are_read_in_the_order_of_appends(log, address):
    before_s = time.time()

    assert append(log, ("a", b"first"), ("b", b"")) == Appended(accepted=2, duplicates=0)
    assert append(log, ("c", b"\0third"), by="bob") == Appended(accepted=1, duplicates=0)

    rows = list(read_outcomes(address))
    assert [(row.idempotency_key, row.message, row.reported_by) for row in rows] == [
        ("a", b"first", "alice"),
        ("b", b"", "alice"),
        ("c", b"\0third", "bob"),
    ]
    assert all(before_s <= row.received_at_unix_s <= time.time() for row in rows)
    assert keys(address, after=rows[0].position) == ["b", "c"]
    assert keys(address, after=rows[2].position) == []


def test_a_key_is_stored_once_with_its_first_report(log, address):
    append(log, ("a", b"first"))

    assert append(log, ("a", b"second"), ("b", b""), by="bob") == Appended(1, 0, (0,))
    assert append(log, ("a", b"first")) == Appended(0, 1)
    assert [(row.idempotency_key, row.message) for row in read_outcomes(address)] == [
        ("a", b"first"),
        ("b", b""),
    ]


def test_a_report_with_duplicate_keys(log, address):
    assert append(log, ("a", b"first"), ("b", b""), ("a", b"first")) == Appended(2, 1)
    assert keys(address) == ["a", "b"]


def test_an_empty_report(log, address):
    assert append(log) == Appended(0, 0)
    assert keys(address) == []


def test_a_key_may_be_any_text(log, address):
    texts = ["", "a\0b", "'; DROP TABLE outcomes; --", "\u00e4\U0001f680", "k" * 100_000]

    assert append(log, *((text, b"") for text in texts)) == Appended(5, 0)
    assert keys(address) == texts


def test_a_reopened_log_continues_where_it_was_closed(address):
    for name in ("a", "b"):
        with closing(OutcomeLog(address)) as log:
            append(log, (name, b""))

    with closing(OutcomeLog(address)) as log:
        assert append(log, ("a", b""), ("c", b"")) == Appended(1, 1)
    assert keys(address) == ["a", "b", "c"]


def test_many_threads_append_at_once(log, address):
    def report(thread: int) -> None:
        for i in range(50):
            assert append(log, (f"{thread}/{i}", b""), ("shared", b"")).accepted >= 1

    threads = [threading.Thread(target=report, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(keys(address)) == sorted([*(f"{t}/{i}" for t in range(8) for i in range(50)),
                                         "shared"])  # fmt: skip


def test_a_follower_reads_each_row_exactly_once(address):
    seen: list[str] = []
    with closing(OutcomeLog(address)) as one, closing(OutcomeLog(address)) as other:
        pending = [
            log.append([(f"{name}/{i}", b"")], reported_by="")
            for i in range(300)
            for name, log in (("one", one), ("other", other))
        ]
        position = 0
        while not all(done.done() for done in pending) or len(seen) < len(pending):
            for row in read_outcomes(address, after=position):
                assert row.position > position
                position = row.position
                seen.append(row.idempotency_key)
    assert sorted(seen) == sorted(f"{name}/{i}" for name in ("one", "other") for i in range(300))


def test_a_caller_that_gives_up_does_not_stop_the_log(log, address):
    for i in range(100):
        log.append([(f"left/{i}", b"")], reported_by="alice").cancel()

    assert append(log, ("a", b"")) == Appended(1, 0)
    assert keys(address)[-1] == "a"


def test_a_report_that_cannot_be_stored_does_not_stop_the_log(log, address):
    with pytest.raises(OutcomeLogError, match=r"cannot be written"):
        append(log, ("a", b""), ("lone surrogate \ud800", b""))

    assert append(log, ("b", b"")) == Appended(1, 0)
    assert keys(address) == ["b"]


def test_close_finishes_earlier_appends_and_rejects_later_ones(address):
    log = OutcomeLog(address)
    pending = [log.append([(str(i), b"")], reported_by="") for i in range(500)]
    log.close()

    assert [done.result(timeout=0) for done in pending] == [Appended(1, 0)] * 500
    with pytest.raises(OutcomeLogError, match="is closed"):
        append(log, ("late", b""))
    log.close()
    assert len(keys(address)) == 500


KILLED = """
log = OutcomeLog(log_address(path))

def report(thread):
    for i in itertools.count():
        key = f"{rest[0]}/{thread}/{i}"
        append(log, key)
        os.write(1, f"{key}\\n".encode())

for thread in range(3):
    threading.Thread(target=report, args=(thread,), daemon=True).start()
sys.stdin.read()
"""


def test_outcomes_acknowledged_before_a_kill_are_stored_once(address):
    rng = random.Random(0)
    acknowledged: list[str] = []
    for round_number in range(5):
        children = [start(KILLED, address, f"{round_number}/{name}") for name in ("a", "b")]
        for child in children:
            assert child.stdout is not None
            acknowledged.append(child.stdout.readline().strip())
        for child in children:
            time.sleep(rng.uniform(0, 0.1))
            child.kill()
            # Not communicate(), which drops what was read ahead.
            assert child.stdout is not None
            assert child.stderr is not None
            acknowledged += child.stdout.read().splitlines()
            assert child.wait() == -signal.SIGKILL, child.stderr.read()

    rows = list(read_outcomes(address))
    assert len(acknowledged) > 10
    assert set(acknowledged) <= {row.idempotency_key for row in rows}
    assert len({row.idempotency_key for row in rows}) == len(rows)
    assert all(row.message == row.idempotency_key.encode().ljust(500) for row in rows)
    if isinstance(address, Path):
        with closing(sqlite3.connect(address)) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


TOGETHER = """
print("ready", flush=True)
sys.stdin.readline()
log = OutcomeLog(log_address(path))
mine = sum(append(log, f"{rest[0]}/{i}").accepted for i in range(40))
shared = sum(append(log, f"shared/{i}").accepted for i in range(40))
log.close()
print(f'{{"mine": {mine}, "shared": {shared}}}')
"""


def test_processes_create_the_log_and_append_concurrently(address):
    children = [start(TOGETHER, address, number) for number in range(4)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    results = []
    for child in children:
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        results.append(json.loads(out))

    assert [row["mine"] for row in results] == [40] * 4
    assert sum(row["shared"] for row in results) == 40
    assert sorted(keys(address)) == sorted(
        [f"{number}/{i}" for number, i in itertools.product([*range(4), "shared"], range(40))]
    )


def test_outcomes_are_withdrawn_once_by_key_or_by_reporter(log, address):
    append(log, ("a", b"1"), ("b", b"2"))
    append(log, ("c", b"3"), by="bob")

    assert withdraw(address, keys=["a", "unknown"]) == 1
    assert withdraw(address, keys=["a"], reported_by=["bob"]) == 1

    (first, key), (second, other) = withdrawn_keys(address)
    assert (key, other) == ("a", "c")
    assert withdrawn_keys(address, after=first) == [(second, "c")]
    assert keys(address) == ["a", "b", "c"]  # they stay in the log


# Copies ------------------------------------------------------------------------------------------


def test_a_copy_has_the_same_rows_and_repeating_it_adds_what_is_new(log, address, tmp_path):
    append(log, ("a", b"1"), ("b", b"2"))
    append(log, ("c", b"3"), by="bob")
    withdraw(address, keys=["b"])
    copied = tmp_path / "copy.db"

    assert copy_log(address, copied) == 3
    rows = [list(read_outcomes(one)) for one in (address, copied)]
    assert rows[0] == rows[1]
    assert [key for _, key in withdrawn_keys(copied)] == ["b"]

    append(log, ("d", b"4"))
    assert copy_log(address, copied) == 1
    assert copy_log(address, copied) == 0
    assert keys(copied) == ["a", "b", "c", "d"]


def test_a_copy_into_a_log_of_other_outcomes_is_an_error(log, address, tmp_path):
    append(log, ("b", b"2"))
    append(log, ("a", b"1"))
    withdraw(address, keys=["b"])
    with closing(OutcomeLog(tmp_path / "other.db")) as other:
        append(other, ("a", b"another"))

    with pytest.raises(OutcomeLogError, match=r"other\.db has another outcome with the key 'a'"):
        copy_log(address, tmp_path / "other.db")
    assert [key for _, key in withdrawn_keys(tmp_path / "other.db")] == ["b"]


def test_a_copy_of_a_missing_log_creates_none(tmp_path):
    with pytest.raises(OutcomeLogError, match=r"none\.db cannot be read"):
        copy_log(tmp_path / "none.db", tmp_path / "copy.db")
    assert not list(tmp_path.iterdir())
