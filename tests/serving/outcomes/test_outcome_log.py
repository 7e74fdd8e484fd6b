"""Outcome log: acknowledged outcomes are stored exactly once, also after crashes."""

from __future__ import annotations

import itertools
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from presage.errors import OutcomeLogError
from presage.serving.outcomes.outcome_log import (
    Appended,
    OutcomeLog,
    read_outcomes,
    withdraw,
    withdrawn_keys,
)
from tests.support.waiting import stays_true

# What every child process begins with: the log at its first argument.
CHILD = """
import itertools, os, resource, sys, threading
from pathlib import Path
from presage.errors import OutcomeLogError
from presage.serving.outcomes.outcome_log import OutcomeLog

def append(log, key, size=500):
    return log.append([(key, key.encode().ljust(size))], reported_by="child").result()

path, *rest = sys.argv[1:]
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "outcomes" / "log.db"


@pytest.fixture
def log(path):
    with closing(OutcomeLog(path)) as opened:
        yield opened


def append(log: OutcomeLog, *outcomes: tuple[str, bytes], by: str = "alice") -> Appended:
    return log.append(outcomes, reported_by=by).result(timeout=10)


def keys(path: Path, after: int = 0) -> list[str]:
    return [row.idempotency_key for row in read_outcomes(path, after=after)]


def start(program: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD + program, *map(str, args)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(program: str, *args: object) -> str:
    out, err = (child := start(program, *args)).communicate(timeout=60)
    assert child.returncode == 0, err
    return out


# What is appended ------------------------------------------------------------------------------


def test_outcomes_are_read_in_the_order_of_appends(log, path):
    before_s = time.time()

    assert append(log, ("a", b"first"), ("b", b"")) == Appended(accepted=2, duplicates=0)
    assert append(log, ("c", b"\0third"), by="bob") == Appended(accepted=1, duplicates=0)

    rows = list(read_outcomes(path))
    assert [(row.idempotency_key, row.message, row.reported_by) for row in rows] == [
        ("a", b"first", "alice"),
        ("b", b"", "alice"),
        ("c", b"\0third", "bob"),
    ]
    assert all(before_s <= row.received_at_unix_s <= time.time() for row in rows)
    assert keys(path, after=rows[0].position) == ["b", "c"]
    assert keys(path, after=rows[2].position) == []


def test_a_key_is_stored_once_with_its_first_report(log, path):
    append(log, ("a", b"first"))

    assert append(log, ("a", b"second"), ("b", b""), by="bob") == Appended(1, 0, (0,))
    assert append(log, ("a", b"first")) == Appended(0, 1)
    assert [(row.idempotency_key, row.message) for row in read_outcomes(path)] == [
        ("a", b"first"),
        ("b", b""),
    ]


def test_a_report_with_duplicate_keys(log, path):
    assert append(log, ("a", b"first"), ("b", b""), ("a", b"first")) == Appended(2, 1)
    assert keys(path) == ["a", "b"]


def test_an_empty_report(log, path):
    assert append(log) == Appended(0, 0)
    assert keys(path) == []


def test_a_key_may_be_any_text(log, path):
    texts = ["", "a\0b", "'; DROP TABLE outcomes; --", "\u00e4\U0001f680", "k" * 100_000]

    assert append(log, *((text, b"") for text in texts)) == Appended(5, 0)
    assert keys(path) == texts


def test_a_reopened_log_continues_where_it_was_closed(path):
    for name in ("a", "b"):
        with closing(OutcomeLog(path)) as log:
            append(log, (name, b""))

    with closing(OutcomeLog(path)) as log:
        assert append(log, ("a", b""), ("c", b"")) == Appended(1, 1)
    assert keys(path) == ["a", "b", "c"]


def test_many_threads_append_at_once(log, path):
    def report(thread: int) -> None:
        for i in range(50):
            assert append(log, (f"{thread}/{i}", b""), ("shared", b"")).accepted >= 1

    threads = [threading.Thread(target=report, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(keys(path)) == sorted([*(f"{t}/{i}" for t in range(8) for i in range(50)),
                                         "shared"])  # fmt: skip


def test_a_follower_reads_each_row_exactly_once(path):
    seen: list[str] = []
    with closing(OutcomeLog(path)) as one, closing(OutcomeLog(path)) as other:
        pending = [
            log.append([(f"{name}/{i}", b"")], reported_by="")
            for i in range(300)
            for name, log in (("one", one), ("other", other))
        ]
        position = 0
        while not all(done.done() for done in pending) or len(seen) < len(pending):
            for row in read_outcomes(path, after=position):
                assert row.position > position
                position = row.position
                seen.append(row.idempotency_key)
    assert sorted(seen) == sorted(f"{name}/{i}" for name in ("one", "other") for i in range(300))


# Never changed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outcomes SET message = x'00'",
        "UPDATE outcomes SET idempotency_key = 'z' WHERE idempotency_key = 'a'",
        "DELETE FROM outcomes",
        "DELETE FROM outcomes WHERE idempotency_key = 'a'",
        "REPLACE INTO outcomes VALUES (7, 'a', 0, '', x'00')",
        "INSERT OR REPLACE INTO outcomes VALUES (1, 'other', 0, '', x'00')",
        "INSERT INTO outcomes VALUES (7, 'a', 0, '', x'00') "
        "ON CONFLICT (idempotency_key) DO UPDATE SET message = excluded.message",
    ],
)
def test_no_row_is_changed_or_removed(log, path, statement):
    append(log, ("a", b"first"), ("b", b"second"))
    before = list(read_outcomes(path))

    with closing(sqlite3.connect(path)) as database:
        with suppress(sqlite3.IntegrityError):
            database.execute(statement)
        database.commit()

    assert list(read_outcomes(path)) == before
    assert append(log, ("c", b"")) == Appended(1, 0)


# What goes wrong -------------------------------------------------------------------------------


def test_a_caller_that_gives_up_does_not_stop_the_log(log, path):
    for i in range(100):
        log.append([(f"left/{i}", b"")], reported_by="alice").cancel()

    assert append(log, ("a", b"")) == Appended(1, 0)
    assert keys(path)[-1] == "a"


def test_a_report_that_cannot_be_stored_does_not_stop_the_log(log, path):
    with pytest.raises(OutcomeLogError, match=r"log\.db cannot be written"):
        append(log, ("a", b""), ("lone surrogate \ud800", b""))

    assert append(log, ("b", b"")) == Appended(1, 0)
    assert keys(path) == ["b"]


def test_close_finishes_earlier_appends_and_rejects_later_ones(path):
    log = OutcomeLog(path)
    pending = [log.append([(str(i), b"")], reported_by="") for i in range(500)]
    log.close()

    assert [done.result(timeout=0) for done in pending] == [Appended(1, 0)] * 500
    with pytest.raises(OutcomeLogError, match="is closed"):
        append(log, ("late", b""))
    log.close()
    assert len(keys(path)) == 500


def test_a_file_that_is_not_a_database_is_an_error(tmp_path):
    (path := tmp_path / "notes.txt").write_text("years of work\n" * 100)

    for use in (lambda: OutcomeLog(path), lambda: keys(path)):
        with pytest.raises(
            OutcomeLogError, match=r"notes\.txt cannot be (opened|read).*--outcomes"
        ):
            use()
    assert path.read_text() == "years of work\n" * 100


def test_a_database_of_another_kind_is_an_error(tmp_path):
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE outcomes (score REAL)")

    with pytest.raises(OutcomeLogError, match=r"mlflow\.db cannot be read \(no such column"):
        keys(path)
    with pytest.raises(OutcomeLogError, match=r"mlflow\.db cannot be opened"):
        OutcomeLog(path)


def test_reading_a_missing_log_is_an_error_and_creates_none(tmp_path):
    with pytest.raises(OutcomeLogError, match=r"log\.db cannot be read.*the server's --outcomes"):
        keys(tmp_path / "log.db")
    assert not list(tmp_path.iterdir())


def test_an_impossible_folder_is_an_error(tmp_path):
    (tmp_path / "file").touch()

    for path in (tmp_path / "file" / "log.db", tmp_path):
        with pytest.raises(OutcomeLogError, match=r"cannot be opened.*--outcomes"):
            OutcomeLog(path)
    with pytest.raises(ValueError, match="null"):
        OutcomeLog(tmp_path / "a\0b" / "log.db")


@contextmanager
def folder_for_all():
    """Return a folder readable by other users, which pytest's folders are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o700)


UNPRIVILEGED = """
if os.geteuid() == 0:
    os.seteuid(65534)  # root may write everywhere
try:
    log = OutcomeLog(Path(path))
    append(log, "late")
except OutcomeLogError as error:
    print(error)
"""


@pytest.mark.parametrize("there_before", [True, False])
def test_a_read_only_folder_is_an_error_when_the_log_is_opened(there_before):
    with folder_for_all() as folder:
        path = folder / "log.db"
        if there_before:
            with closing(OutcomeLog(path)) as log:
                append(log, ("a", b""))
            path.chmod(0o444)
        folder.chmod(0o555)

        said = run(UNPRIVILEGED, path)

        assert "log.db cannot be opened" in said
        assert there_before == path.exists()


FULL_DISK = """
log = OutcomeLog(Path(path))
append(log, "before")
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
# No file of this process grows any more: what a write gets is an error, as of a full disk.
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
for i in itertools.count():
    try:
        append(log, f"full/{i}", size=20_000)
        print(f"full/{i}", flush=True)
    except OutcomeLogError as error:
        print(error)
        break
try:
    append(log, "still full", size=20_000)
except OutcomeLogError:
    print("refused again")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
append(log, "after")
"""


def test_a_full_disk_acknowledges_nothing_and_the_log_recovers_with_space(path):
    *acknowledged, error, again = run(FULL_DISK, path).splitlines()

    assert len(acknowledged) > 3
    assert "log.db cannot be written" in error
    assert "free disk space" in error
    assert again == "refused again"
    assert keys(path) == ["before", *acknowledged, "after"]


# Processes -------------------------------------------------------------------------------------

KILLED = """
log = OutcomeLog(Path(path))

def report(thread):
    for i in itertools.count():
        key = f"{rest[0]}/{thread}/{i}"
        append(log, key)
        os.write(1, f"{key}\\n".encode())

for thread in range(3):
    threading.Thread(target=report, args=(thread,), daemon=True).start()
sys.stdin.read()
"""


def test_outcomes_acknowledged_before_a_kill_are_stored_once(path):
    rng = random.Random(0)
    acknowledged: list[str] = []
    for round_number in range(5):
        children = [start(KILLED, path, f"{round_number}/{name}") for name in ("a", "b")]
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

    rows = list(read_outcomes(path))
    assert len(acknowledged) > 10
    assert set(acknowledged) <= {row.idempotency_key for row in rows}
    assert len({row.idempotency_key for row in rows}) == len(rows)
    assert all(row.message == row.idempotency_key.encode().ljust(500) for row in rows)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


TOGETHER = """
print("ready", flush=True)
sys.stdin.readline()
log = OutcomeLog(Path(path))
mine = sum(append(log, f"{rest[0]}/{i}").accepted for i in range(40))
shared = sum(append(log, f"shared/{i}").accepted for i in range(40))
log.close()
print(f'{{"mine": {mine}, "shared": {shared}}}')
"""


def test_processes_create_the_log_and_append_concurrently(path):
    children = [start(TOGETHER, path, number) for number in range(4)]
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
    assert sorted(keys(path)) == sorted(
        [f"{number}/{i}" for number, i in itertools.product([*range(4), "shared"], range(40))]
    )


def test_a_long_write_only_delays_other_processes(log, path):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        pending = log.append([("a", b"")], reported_by="")
        assert stays_true(lambda: not pending.done(), 0.3)
        other.execute("ROLLBACK")

    assert pending.result(timeout=10) == Appended(1, 0)


def test_a_new_log_is_readable_only_by_its_owner(path):
    with closing(OutcomeLog(path)) as opened:
        append(opened, ("a", b"1"))

        files = sorted(path.parent.iterdir())
        assert [file.name for file in files] == ["log.db", "log.db-shm", "log.db-wal"]
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_an_existing_log_keeps_its_mode(path):
    OutcomeLog(path).close()
    path.chmod(0o640)  # a group that reads it

    with closing(OutcomeLog(path)) as opened:
        append(opened, ("a", b"1"))
    assert path.stat().st_mode & 0o777 == 0o640
    assert keys(path) == ["a"]


# Withdrawals ------------------------------------------------------------------------------------


def test_outcomes_are_withdrawn_once_by_key_or_by_reporter(log, path):
    append(log, ("a", b"1"), ("b", b"2"))
    append(log, ("c", b"3"), by="bob")

    assert withdraw(path, keys=["a", "unknown"]) == 1
    assert withdraw(path, keys=["a"], reported_by=["bob"]) == 1

    (first, key), (second, other) = withdrawn_keys(path)
    assert (key, other) == ("a", "c")
    assert withdrawn_keys(path, after=first) == [(second, "c")]
    assert keys(path) == ["a", "b", "c"]  # they stay in the log


def test_a_log_of_an_older_version_has_no_withdrawals(log, path):
    append(log, ("a", b"1"))
    log.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE withdrawals")

    assert withdrawn_keys(path) == []
    assert withdraw(path, keys=["a"]) == 1
    assert [key for _, key in withdrawn_keys(path)] == ["a"]


def test_withdrawing_from_a_missing_log_creates_none(tmp_path):
    with pytest.raises(OutcomeLogError, match=r"none\.db cannot be read"):
        withdraw(tmp_path / "none.db", keys=["a"])
    assert not list(tmp_path.iterdir())
