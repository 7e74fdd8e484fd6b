"""Outcome log in a file: its rows, its modes, disks that are full, and other writers."""

from __future__ import annotations

import sqlite3
import tempfile
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
from tests.serving.outcomes.log_support import append, keys, run
from tests.support.waiting import stays_true


@pytest.fixture
def path(tmp_path):
    return tmp_path / "outcomes" / "log.db"


@pytest.fixture
def log(path):
    with closing(OutcomeLog(path)) as opened:
        yield opened


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
