"""Tests that changes of the database without the journal's key are detected."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from presage.errors import ConfigError, JournalError
from presage.schedulers.live.controller.journal import journal_sql
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.live.controller.journal.journal_key import read_key
from tests.schedulers.live.controller.journal.journals import sql
from tests.schedulers.live.controller.journal.test_journal import HOLDS, start

ENTRIES, ROWS = "presage_journal_entries", "presage_journal_rows"
SECRET = "hunter2-of-the-environment"


def submitted(name, command="train", **environment):
    job = {"job_id": name, "command": [command], "environment": environment}
    return {"type": "Submitted", "job_id": name, "job": job}


def row_of(name, **environment):
    return {"job_id": name, "job_json": {"command": ["train"], "environment": environment}}


@pytest.fixture
def written(url):
    """Return a journal of ten entries, two of them pruned, with a snapshot at entry five."""
    with Journal.open(url) as journal:
        journal.append([submitted(f"j{n}", TOKEN=SECRET) for n in range(1, 3)])
        journal.save({}, 2)
        journal.prune(float("inf"))
        journal.append([submitted(f"j{n}", TOKEN=SECRET) for n in range(3, 11)])
        journal.save({f"job {n}": row_of(f"j{n}", TOKEN=SECRET) for n in range(3)}, 5)
    return url


def test_an_unaltered_journal_is_read_as_written(written):
    with Journal.open(written) as journal:
        rows, seq = journal.load()
        assert seq == 5
        assert rows["job 1"] == row_of("j1", TOKEN=SECRET)
        assert [entry.seq for entry in journal.read()] == list(range(3, 11))
        assert next(journal.read(6)).record == submitted("j7", TOKEN=SECRET)
        assert journal.job_entries("j3", 9)[0].record == submitted("j3", TOKEN=SECRET)
        assert journal.append([submitted("j11")]) == 11


TAMPERED = {
    "an altered command": (
        f"UPDATE {ENTRIES} SET record = replace(record, 'train', 'rm -rf') WHERE seq = 7",
        "entry 7 is damaged",
    ),
    "an altered command of long ago": (
        f"UPDATE {ENTRIES} SET record = replace(record, 'train', 'rm -rf') WHERE seq = 3",
        "entry 3 is damaged",
    ),
    "another time": (f"UPDATE {ENTRIES} SET time_unix_s = 1 WHERE seq = 8", "entry 8 is damaged"),
    "another job": (f"UPDATE {ENTRIES} SET job_id = 'j9' WHERE seq = 8", "entry 8 is damaged"),
    "a removed entry": (f"DELETE FROM {ENTRIES} WHERE seq = 7", "entries 7 to 7 are missing"),
    "a removed beginning": (f"DELETE FROM {ENTRIES} WHERE seq < 5", "entries 3 to 4 are missing"),
    "a removed end": (f"DELETE FROM {ENTRIES} WHERE seq > 8", "entries 9 to 10 are missing"),
    "an entry that was added": (
        f"INSERT INTO {ENTRIES} SELECT 11, time_unix_s, job_id, record, mac FROM {ENTRIES} "
        "WHERE seq = 10",
        "entry 11 is damaged",
    ),
    "entries in another order": (
        f"UPDATE {ENTRIES} SET record = (SELECT o.record FROM {ENTRIES} o WHERE o.seq = 8), "
        f"mac = (SELECT o.mac FROM {ENTRIES} o WHERE o.seq = 8), job_id = 'j8' WHERE seq = 7",
        "entry 7 is damaged",
    ),
    "an altered row": (
        f"UPDATE {ROWS} SET content = replace(content, 'train', 'rm -rf') WHERE key = 'job 1'",
        'row "job 1" of the snapshot is damaged',
    ),
    "a removed row": (f"DELETE FROM {ROWS} WHERE key = 'job 1'", "of its snapshot are missing"),
    "a row by another name": (f"UPDATE {ROWS} SET key = 'job 7' WHERE key = 'job 1'", "job 7"),
    "a snapshot as of another entry": (
        "UPDATE presage_journal SET snapshot_seq = 9", "its seal was altered"
    ),
    "another end of the chain": ("UPDATE presage_journal SET last_seq = 9", "its seal was altered"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_alterations_are_detected_and_named(written, name):
    statement, expected = TAMPERED[name]
    sql(written, statement)

    with pytest.raises(JournalError, match=expected), Journal.open(written) as journal:
        journal.load()


def test_a_row_of_an_earlier_snapshot_is_rejected(written):
    before = sql(written, f"SELECT content, mac FROM {ROWS} WHERE key = 'job 1'")[0]
    with Journal.open(written) as journal:
        journal.save({"job 1": row_of("j1", TOKEN="another")}, 6)
    content, mac = before
    sql(written, f"UPDATE {ROWS} SET content = '{content}', mac = '{mac}' WHERE key = 'job 1'")

    refused = pytest.raises(JournalError, match="or belong to an earlier")
    with Journal.open(written) as journal, refused:
        journal.load()


def test_job_entries_are_checked(written):
    sql(written, f"UPDATE {ENTRIES} SET record = replace(record, 'train', 'x') WHERE seq = 4")

    damaged = pytest.raises(JournalError, match="entry 4 is damaged")
    with Journal.open(written) as journal, damaged:
        journal.job_entries("j4", 9)


def files_of(url):
    path = Path(url.removeprefix("sqlite:///"))
    return [found for found in path.parent.iterdir() if found.name != "filler"]


def is_sqlite(url):
    return url.startswith("sqlite")


def test_the_environment_of_a_job_is_not_in_the_database(written):
    if is_sqlite(written):
        with Journal.open(written) as journal:
            journal.append([submitted("open", TOKEN=SECRET)])
            for path in files_of(written):
                assert SECRET.encode() not in path.read_bytes(), path
    for table, column in ((ENTRIES, "record"), (ROWS, "content")):
        for (text,) in sql(written, f"SELECT {column} FROM {table}"):
            assert SECRET not in text
            assert '"environment":"aes-gcm:' in text


def test_the_environment_of_a_job_cannot_be_moved_to_another_job(written):
    with Journal.open(written) as journal:
        first, other = journal.job_entries("j3", 1)[0].record, submitted("j4")
        key = read_key(journal.store.key_file, "written")
    hidden = dict(key.hide(first))
    with pytest.raises(ValueError, match="encrypted with another key"):
        key.reveal({**other, "job": hidden["job"]})


# The key ----------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "folder" / "controller.db"
    with Journal.open(str(path)) as journal:
        journal.append([submitted("a", TOKEN=SECRET)])
    return path


def key_of(path):
    return path.with_name(f"{path.name}.key")


def test_a_lost_key_is_reported_and_not_replaced(path):
    key_of(path).unlink()

    with pytest.raises(JournalError, match=r"its key .*\.db\.key cannot be read.* restore it"):
        Journal.open(str(path))
    assert not key_of(path).exists()


def test_another_key_is_rejected_and_the_correct_one_can_be_passed(path, tmp_path):
    kept = tmp_path / "kept.key"
    key_of(path).rename(kept)
    with Journal.open(str(tmp_path / "other.db")) as other:
        other.append([])
    key_of(tmp_path / "other.db").rename(key_of(path))

    with pytest.raises(JournalError, match=r"was written with another key .*restore that"):
        Journal.open(str(path))
    with Journal.open(str(path), kept) as journal:
        assert journal.load()[1] == 0


@pytest.mark.parametrize("text", ["", "xyz", "00" * 31, "00" * 33])
def test_an_invalid_key_is_rejected(path, text):
    key_of(path).write_text(text)

    with pytest.raises(JournalError, match="is not a key of 32 bytes"):
        Journal.open(str(path))


def test_a_key_that_other_users_can_read_is_rejected(path):
    key_of(path).chmod(0o644)

    with pytest.raises(JournalError, match=r"other users can read .*; chmod 600 .*\.key"):
        Journal.open(str(path))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give the key to another user")
def test_a_key_of_another_user_is_rejected(path):
    os.chown(key_of(path), 65534, 65534)

    with pytest.raises(JournalError, match=r"key .* belongs to another user"):
        Journal.open(str(path))


def test_the_target_of_a_linked_lock_file_is_not_truncated(path, tmp_path):
    """The lock file is a link, as another user could create it in a shared folder."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    lock = path.with_name(f"{path.name}.lock")
    lock.unlink()
    lock.symlink_to(victim)

    with pytest.raises(JournalError, match="cannot be opened"):
        Journal.open(str(path))
    assert victim.read_text() == "untouched"


@pytest.mark.parametrize("umask", [0, 0o077])
def test_files_are_private_for_any_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        path = tmp_path / f"{umask}" / "controller.db"
        with Journal.open(str(path)) as journal:
            journal.append([submitted("a", TOKEN=SECRET)])
            modes = {
                found.name: stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()
            }
        with Journal.open(str(path)) as journal:
            assert journal.last_seq == 1
    finally:
        os.umask(before)
    names = {
        "controller.db",
        *(f"controller.db{more}" for more in (".key", ".lock", "-wal", "-shm")),
    }
    assert modes == dict.fromkeys(names, 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_readable_files_of_an_earlier_version_become_private(path):
    for name in ("", "-wal"):
        path.with_name(f"{path.name}{name}").touch()
        path.with_name(f"{path.name}{name}").chmod(0o644)
    with Journal.open(str(path)) as journal:
        journal.append([submitted("b")])
        assert {stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()} == {0o600}


# The version before -----------------------------------------------------------------------------


def first_version(url):
    """Write a journal of the previous version."""
    for statement in journal_sql.TABLES:
        sql(url, statement.format(big="BIGINT"))
    record = (
        '{"job":{"command":["train"],"environment":{"TOKEN":"' + SECRET + '"}},"job_id":"a",'
        '"type":"Submitted"}'
    )
    for seq in range(3, 1203):
        sql(url, f"INSERT INTO {ENTRIES} VALUES ({seq}, {seq}.5, 'a', '{record}')")
    row = '{"job_id":"a","job_json":{"environment":{"TOKEN":"' + SECRET + '"}}}'
    sql(url, f"INSERT INTO {ROWS} VALUES ('job a', '{row}')")
    sql(url, "UPDATE presage_journal SET snapshot_seq = 4")


def test_a_journal_of_the_previous_version_is_sealed_and_its_secrets_removed(url, tmp_path):
    key = tmp_path / "of-this-one.key"
    if is_sqlite(url):
        path = Path(url.removeprefix("sqlite:///"))
        path.parent.mkdir()
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = WAL")
    first_version(url)
    with Journal.open(url, key) as journal:
        rows, seq = journal.load()
        assert (rows["job a"]["job_json"]["environment"], seq) == ({"TOKEN": SECRET}, 4)
        entries = list(journal.read())
        assert [entry.seq for entry in entries] == list(range(3, 1203))
        assert entries[7].time_unix_s == 10.5
        assert {entry.record["job"]["environment"]["TOKEN"] for entry in entries} == {SECRET}
        assert journal.append([{"n": 1}]) == 1203
        if is_sqlite(url):
            for found in path.parent.iterdir():
                assert SECRET.encode() not in found.read_bytes(), found
    with Journal.open(url, key) as journal:
        assert journal.load()[1] == 4
    sql(url, f"UPDATE {ENTRIES} SET record = replace(record, 'train', 'x') WHERE seq = 100")
    with (
        pytest.raises(JournalError, match="entry 100 is damaged"),
        Journal.open(url, key) as journal,
    ):
        journal.load()


def test_a_journal_without_its_hashes_is_not_sealed_again(written):
    columns = ("key_id", "anchor_seq", "anchor", "last_seq", "last", "snapshot", "seal")
    sql(
        written,
        *(f"ALTER TABLE presage_journal DROP COLUMN {name}" for name in columns),
        *(f"ALTER TABLE {name} DROP COLUMN mac" for name in (ENTRIES, ROWS)),
        "UPDATE presage_journal SET version = 1",
        f"UPDATE {ENTRIES} SET record = replace(record, 'train', 'rm -rf') WHERE seq = 7",
    )

    with pytest.raises(JournalError, match=r"has version 1, without hashes"):
        Journal.open(written)
    with pytest.raises(JournalError, match=r"has version 1, without hashes"):
        Journal.open(written)  # it was left as it was


# One at a time ----------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(path, tmp_path):
    """Return another path of a journal's file, of a given kind."""

    def another(how):
        other = tmp_path / "other" / "another.db"
        other.parent.mkdir()
        if how == "a hard link":
            other.hardlink_to(path)
        elif how == "a symlink":
            other.symlink_to(path)
        elif how == "a new name":
            path.rename(other)
        return other

    return another


@pytest.mark.parametrize("how", ["a hard link", "a symlink", "a new name"])
@pytest.mark.parametrize("by", ["this process", "another process"])
def test_a_journal_is_opened_once_through_any_path(path, elsewhere, how, by):
    if by == "this process":
        with Journal.open(str(path)) as journal:
            other = elsewhere(how)
            with pytest.raises(ConfigError, match=r"is open in .*process"):
                Journal.open(str(other))
            journal.append([{"n": 1}])  # SQLite still has its locks
            with pytest.raises(ConfigError, match=r"is open in .*process"):
                Journal.open(str(other), key_of(path))
        return
    holder = start(HOLDS, path)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        other = elsewhere(how)
        with pytest.raises(ConfigError, match=r"is open in .*process"):
            Journal.open(str(other), key_of(path))
    finally:
        holder.kill()
        holder.communicate()


def test_a_file_that_replaces_an_open_journal_is_not_opened(path, tmp_path):
    with Journal.open(str(path)) as journal:
        path.rename(tmp_path / "moved.db")
        with pytest.raises(ConfigError, match="is open in process"):
            Journal.open(str(path))
        assert not path.exists()
        journal.append([{"n": 1}])


def test_a_bind_mounted_journal_is_opened_once(path, tmp_path):
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    mount = ["mount", "--bind", str(path.parent), str(mounted)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount here")
    try:
        with Journal.open(str(path)), pytest.raises(ConfigError, match="is open in"):
            Journal.open(str(mounted / path.name))
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)
