"""Tests of the journal: the contract on SQLite and PostgreSQL, and specifics of each."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from presage.errors import ConfigError, JournalError, UnsureJournalError
from presage.schedulers.live.controller.journal.journal import Entry, Journal
from tests.schedulers.live.controller.journal.journals import needs_postgres, sql
from tests.serving.support.processes import free_port
from tests.support.slow_tests import examples
from tests.support.waiting import wait_until

# Start of each child process: opens the journal at its first argument.
CHILD = """
import itertools, os, random, resource, sys
from presage.errors import JournalError
from presage.schedulers.live.controller.journal.journal import Journal
url, *rest = sys.argv[1:]
"""

TEXTS = st.text(st.characters(), max_size=8) | st.sampled_from(["\0", "\ud800", "ä\U0001f680", "'"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
RECORDS = st.dictionaries(TEXTS.filter(lambda key: key != "job_id"), JSON, max_size=4)
# One journal for all examples, as a controller has.
law = settings(
    suppress_health_check=[HealthCheck.too_slow], max_examples=examples(30), deadline=None
)


def numbers(journal: Journal, after: int = 0) -> list[Any]:
    return [entry.record["n"] for entry in journal.read(after)]


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


def test_entries_are_numbered_without_gaps_and_dated(journal):
    before_s = time.time()
    assert journal.last_seq == 0
    assert journal.append([{"n": 1}, {"n": 2, "job_id": "a"}]) == 2
    assert journal.append([]) == 2
    assert journal.append([{"n": 3}]) == 3

    entries = list(journal.read())
    assert [entry[::2] for entry in entries] == [
        (1, {"n": 1}), (2, {"n": 2, "job_id": "a"}), (3, {"n": 3})
    ]  # fmt: skip
    assert all(before_s <= entry.time_unix_s <= time.time() for entry in entries)
    assert numbers(journal, after=1) == [2, 3]
    assert numbers(journal, after=3) == []


def test_a_reopened_journal_continues(url):
    for number in (1, 2):
        with Journal.open(url) as journal:
            assert journal.append([{"n": number}]) == number
            assert journal.last_seq == number
    with pytest.raises(JournalError, match="is closed; open it again"):
        journal.append([{"n": 3}])
    journal.close()


def test_any_records_are_read_back_equal(journal):
    @law
    @given(st.lists(st.lists(RECORDS, max_size=4), max_size=3))
    def holds(batches: list[list[dict[str, Any]]]) -> None:
        before = journal.last_seq
        for batch in batches:
            journal.append(batch)
        read = list(journal.read(before))
        assert [entry.record for entry in read] == [record for row in batches for record in row]
        assert [entry.seq for entry in read] == list(range(before + 1, journal.last_seq + 1))

    holds()


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"share": float("nan")}, r"record 1\['share'\] is nan"),
        ({"a": [1, {"b": float("-inf")}]}, r"record 1\['a'\]\[1\]\['b'\] is -inf"),
        ({"devices": (0, 1)}, r"record 1\['devices'\] is \(0, 1\)"),
        ({"a": {7: "x"}}, r"record 1\['a'\] has the key 7"),
        ({"a": {7: "x", "7": "y"}}, r"record 1\['a'\] has the key 7"),
        ({"a": b"x"}, r"record 1\['a'\] is b'x'"),
        ({"a": 10**5000}, "record 1: not JSON"),
        ({"job_id": 7}, "job_id=7, must be a string"),
        ({"job_id": "j" * 2001}, "has 2001 characters"),
    ],
)
def test_a_record_that_json_does_not_preserve_is_rejected_by_name(tmp_path, record, expected):
    with Journal.open(str(tmp_path / "j.db")) as journal:
        with pytest.raises(ValueError, match=expected):
            journal.append([{"n": 1}, record])
        assert journal.append([{"n": 2}]) == 1


def test_a_recursive_or_too_deeply_nested_record_is_rejected(tmp_path):
    itself: dict[str, Any] = {}
    itself["me"] = itself
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with Journal.open(str(tmp_path / "j.db")) as journal:
        for record in (itself, deep):
            with pytest.raises(ValueError, match="record 0"):
                journal.append([record])
    while deep:  # its end would be recursive, too
        deep = deep.pop("a")


def test_the_newest_entries_of_a_job_are_found(journal):
    odd = "ä\0\ud800'\"\\"
    journal.append([{"n": n, "job_id": "ab"[n % 2]} for n in range(10)])
    journal.append([{"n": 10, "job_id": odd}, {"n": 11}, {"n": 12, "job_id": None}])

    assert [entry.record["n"] for entry in journal.job_entries("a", 3)] == [4, 6, 8]
    assert [entry.record["n"] for entry in journal.job_entries("b", 99)] == [1, 3, 5, 7, 9]
    assert [entry.record for entry in journal.job_entries(odd, 9)] == [{"n": 10, "job_id": odd}]
    assert journal.job_entries("c", 9) == []


def test_reads_and_appends_do_not_block_each_other(journal):
    journal.append([{"n": n} for n in range(2500)])
    reading = journal.read()
    first = next(reading)
    journal.append([{"n": 2500}])

    assert first == Entry(1, first.time_unix_s, {"n": 0})
    assert [entry.record["n"] for entry in reading] == list(range(1, 2501))


def test_many_threads_append_and_read_at_once(journal):
    def work(thread: int) -> None:
        for i in range(20):
            seq = journal.append([{"n": [thread, i, half]} for half in (0, 1)])
            assert [entry.record["n"][2] for entry in journal.read(seq - 2)][:2] == [0, 1]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert journal.last_seq == 6 * 20 * 2
    assert [n[0] for n in numbers(journal)[::2]] == [n[0] for n in numbers(journal)[1::2]]


# Snapshot ---------------------------------------------------------------------------------------


def fold(state: dict[str, Any], entries: list[dict[str, Any]]) -> dict[str, Any]:
    for record in entries:
        if record["row"] is None:
            state.pop(record["key"], None)
        else:
            state[record["key"]] = record["row"]
    return state


CHANGES = st.fixed_dictionaries({"key": TEXTS, "row": st.none() | RECORDS})
STEPS = st.lists(
    st.lists(CHANGES, min_size=1, max_size=4) | st.sampled_from(["save", "prune"]), max_size=8
)


def test_a_snapshot_and_later_entries_equal_all_entries(url):
    state: dict[str, Any] = {}
    dirty: set[str] = set()

    @law
    @given(STEPS)
    def holds(steps: list[Any]) -> None:
        for step in steps:
            if step == "save":
                opened.save({key: state.get(key) for key in dirty}, opened.last_seq)
                dirty.clear()
            elif step == "prune":
                opened.prune(time.time() + 1)
            else:
                opened.append(step)
                fold(state, step)
                dirty.update(change["key"] for change in step)
        rows, seq = opened.load()
        assert fold(rows, [entry.record for entry in opened.read(seq)]) == state

    with Journal.open(url) as opened:
        holds()
        last = opened.last_seq
    with Journal.open(url) as opened:
        assert opened.last_seq == last
        rows, seq = opened.load()
        assert fold(rows, [entry.record for entry in opened.read(seq)]) == state


def test_only_old_entries_that_the_snapshot_contains_are_pruned(journal, monkeypatch):
    now_s = time.time()
    assert journal.prune(now_s) == 0
    for at_s, count in ((1.0, 15_000), (now_s, 4_999), (1.0, 1), (now_s, 10_000)):
        monkeypatch.setattr(time, "time", lambda at_s=at_s: at_s)
        journal.append([{"n": n} for n in range(count)])
    assert journal.prune(now_s + 1) == 0
    journal.save({"a": {"x": 1}}, 25_000)
    assert journal.prune(0.0) == 0

    assert journal.prune(2.0) == 15_000
    assert [entry.seq for entry in journal.read()] == list(range(15_001, 30_001))
    assert journal.prune(time.time() + 1) == 10_000
    assert [entry.seq for entry in journal.read(25_000)] == list(range(25_001, 30_001))
    with pytest.raises(ValueError, match="NaN"):
        journal.prune(float("nan"))


def test_numbers_continue_after_all_entries_are_pruned(url):
    with Journal.open(url) as journal:
        journal.append([{"n": 1}, {"n": 2}])
        journal.save({}, 2)
        assert journal.prune(time.time() + 1) == 2
    with Journal.open(url) as journal:
        assert journal.append([{"n": 3}]) == 3
        assert numbers(journal) == [3]


def test_an_invalid_snapshot_is_rejected_without_effect(journal):
    journal.append([{"n": 1}, {"n": 2}])
    journal.save({"a": {"x": 1}}, 2)
    for seq in (1, 3):
        with pytest.raises(ValueError, match=f"seq={seq}, must be between 2 and 2"):
            journal.save({"a": None}, seq)
    with pytest.raises(ValueError, match=r"row 'b'\['x'\] is nan"):
        journal.save({"a": None, "b": {"x": float("nan")}}, 2)
    assert journal.load() == ({"a": {"x": 1}}, 2)


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["", "sqlite:///", "mysql://me:secret@host/db", "sqlite://x", "\0"])
def test_an_invalid_url_is_rejected_without_its_password(bad):
    with pytest.raises(
        ConfigError, match="is not valid; give a path, sqlite:///PATH or "
    ) as caught:
        Journal.open(bad)
    assert "secret" not in str(caught.value)


@needs_postgres
@pytest.mark.parametrize("rest", ["%zz@host/db", "@host/db?colour=blue"])
def test_an_invalid_postgres_url_is_rejected_without_its_password(rest):
    with pytest.raises(ConfigError, match="not postgresql://USER") as caught:
        Journal.open(f"postgresql://me:secret{rest}")
    assert "secret" not in str(caught.value)


@needs_postgres
def test_an_unreachable_server_is_reported():
    with pytest.raises(JournalError, match=r"postgresql://127\.0\.0\.1:\d+/x cannot .*reached"):
        Journal.open(f"postgresql://me:secret@127.0.0.1:{free_port()}/x")


def test_postgres_without_psycopg_names_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(
        sys.modules, "presage.schedulers.live.controller.journal.journal_postgres", raising=False
    )
    with pytest.raises(ConfigError, match=r"pip install 'psycopg\[binary\]'"):
        Journal.open("postgresql://me@host/db")


def test_another_database_is_rejected_unchanged(url):
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir()
    sql(url, "CREATE TABLE runs (score REAL)")
    with pytest.raises(JournalError, match="is not a journal: it has the table 'runs'"):
        Journal.open(url)
    if url.startswith("sqlite"):
        assert sql(url, "PRAGMA journal_mode") == [("delete",)]


def test_another_version_is_rejected(url):
    Journal.open(url).close()
    sql(url, "UPDATE presage_journal SET version = 2")
    with pytest.raises(JournalError, match="has version 2, must be 3; install the Presage"):
        Journal.open(url)
    sql(url, "DELETE FROM presage_journal")
    with pytest.raises(JournalError, match="has version none"):
        Journal.open(url)


def test_damage_is_detected_when_it_is_read(journal, url):
    journal.append([{"n": n, "job_id": "a"} for n in range(4)])
    sql(url, """UPDATE presage_journal_entries SET record = '{"n":' WHERE seq = 4""")
    with pytest.raises(JournalError, match="entry 4 is damaged"):
        list(journal.read(2))
    with pytest.raises(JournalError, match="entry 4 is damaged"):
        journal.job_entries("a", 9)
    sql(url, "DELETE FROM presage_journal_entries WHERE seq IN (1, 2)")
    with pytest.raises(JournalError, match="entries 1 to 2 are missing"):
        list(journal.read())


def test_a_damaged_file_is_rejected_in_one_line(tmp_path):
    path = tmp_path / "j.db"
    with Journal.open(str(path)) as journal:
        journal.append([{"n": "x" * 100} for _ in range(2000)])
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (
        b"years of work\n" * 1000,
        whole[:middle],
        whole[:middle] + random.Random(0).randbytes(20_000) + whole[middle + 20_000 :],
        whole[:200] + b"\0" * 4000 + whole[4200:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(JournalError, match=r"j\.db cannot .*; restore a backup") as caught:
            Journal.open(str(path))
        assert "\n" not in str(caught.value)
        assert path.read_bytes() == damaged


def test_an_impossible_folder_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "j.db", tmp_path):
        with pytest.raises(JournalError, match=r"cannot be opened.*; make .*writable"):
            Journal.open(str(path))


UNPRIVILEGED = """
if os.geteuid() == 0:
    os.seteuid(65534)  # root may write everywhere
try:
    Journal.open(url)
except JournalError as error:
    print(error)
"""


@pytest.mark.parametrize("there_before", [True, False])
def test_a_read_only_folder_is_detected_when_the_journal_is_opened(there_before):
    # Not in a folder of pytest's, which it keeps to their owner.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if there_before:
            Journal.open(str(folder / "j.db")).close()
            (folder / "j.db").chmod(0o444)
            (folder / "j.db.lock").chmod(0o666)
        folder.chmod(0o555)
        expected = run(UNPRIVILEGED, folder / "j.db")
        folder.chmod(0o700)
    assert "j.db cannot be" in expected
    assert "writable" in expected


# One at a time ----------------------------------------------------------------------------------

HOLDS = """
journal = Journal.open(url)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_a_second_controller_is_rejected_until_the_first_is_killed(url):
    holder = start(HOLDS, url)
    assert holder.stdout is not None
    pid = holder.stdout.readline().strip()
    with pytest.raises(ConfigError, match=rf"is open in .*process {pid} on .*; stop that"):
        Journal.open(url)
    holder.kill()
    holder.communicate()
    with Journal.open(url) as journal:
        assert journal.append([{"n": 1}]) == 1


def test_a_link_to_a_journal_shares_its_lock(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "j.db")
    with (
        Journal.open(str(tmp_path / "j.db")),
        pytest.raises(ConfigError, match=f"process {os.getpid()}"),
    ):
        Journal.open(str(tmp_path / "link.db"))


KILLED = """
journal = Journal.open(url)
rng = random.Random(rest[0])
for batch in itertools.count():
    size = rng.choice((1, 1, 2, 7, 300))
    name = f"{rest[0]}/{batch}"
    seq = journal.append([{"batch": name, "number": n, "of": size} for n in range(size)])
    os.write(1, f"{seq} {name}\\n".encode())
    if batch % 5 == 0:
        journal.save({"last": {"seq": seq}}, seq)
"""


def test_acknowledged_entries_survive_a_kill_in_order(url):
    rng = random.Random(0)
    acknowledged: list[tuple[int, str]] = []
    for round_number in range(4):
        child = start(KILLED, url, round_number)
        assert child.stdout is not None
        assert child.stderr is not None
        lines = [child.stdout.readline()]
        time.sleep(rng.uniform(0, 0.2))
        child.kill()
        # Not communicate(), which drops what was read ahead.
        lines += child.stdout.readlines()
        assert child.wait() == -signal.SIGKILL, child.stderr.read()
        acknowledged += [
            (int(seq), name) for seq, name in (line.split() for line in lines if "\n" in line)
        ]

        with Journal.open(url) as journal:
            entries = list(journal.read())
            rows, saved = journal.load()
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        batches: dict[str, list[Entry]] = {}
        for entry in entries:
            batches.setdefault(entry.record["batch"], []).append(entry)
        for batch in batches.values():
            assert [entry.record["number"] for entry in batch] == list(range(len(batch)))
            assert len(batch) == batch[0].record["of"]
        last_of = {name: batch[-1].seq for name, batch in batches.items()}
        assert len(set(acknowledged)) == len(acknowledged)
        assert all(last_of.get(name) == seq for seq, name in acknowledged)
        assert len(acknowledged) <= len(batches) <= len(acknowledged) + round_number + 1
        assert rows == ({"last": {"seq": saved}} if rows else {})
    assert len(acknowledged) > 10


# Disk full --------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a small disk here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stores_no_partial_batch_and_the_journal_recovers(tmp_path):
    with small_disk(tmp_path, "1m"):
        (tmp_path / "filler").write_bytes(bytes(300_000))
        acknowledged = 0
        with Journal.open(str(tmp_path / "j.db")) as journal:
            with pytest.raises(
                JournalError, match=r"j\.db cannot be written.*; free space"
            ) as full:
                while True:
                    journal.append([{"n": acknowledged, "pad": "x" * 5_000}] * 5)
                    acknowledged += 1
            assert not isinstance(full.value, UnsureJournalError)
            with pytest.raises(JournalError, match="free space"):
                journal.append([{"n": "still full", "pad": "x" * 50_000}] * 20)
            assert numbers(journal) == [n for n in range(acknowledged) for _ in range(5)]
            (tmp_path / "filler").unlink()
            assert journal.append([{"n": "after"}]) == 5 * acknowledged + 1
        with Journal.open(str(tmp_path / "j.db")) as journal:
            assert acknowledged > 3
            assert numbers(journal)[-2:] == [acknowledged - 1, "after"]


def test_a_full_disk_is_reported_when_the_journal_is_opened(tmp_path):
    with small_disk(tmp_path, "64k"):
        (tmp_path / "filler").write_bytes(bytes(60_000))
        with pytest.raises(JournalError, match=r"cannot be.*free space"):
            Journal.open(str(tmp_path / "j.db"))
        (tmp_path / "filler").unlink()


QUOTA = """
with Journal.open(url) as journal:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        while True:
            print(journal.append([{"pad": "x" * 5_000}]), flush=True)
    except JournalError as error:
        print(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    print(journal.append([{"n": "after"}]))
"""


def test_a_quota_is_like_a_full_disk(tmp_path):
    *appended, error, after = run(QUOTA, tmp_path / "j.db").splitlines()
    assert error == "JournalError"
    assert len(appended) > 3
    assert int(after) == len(appended) + 1


class DiskThatFails:
    """SQLite connection whose next commit succeeds but reports a failure."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database, self.fails = database, False

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        done = self._database.execute(statement, *values)
        if statement == "COMMIT" and self.fails:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def test_after_a_failed_fsync_the_journal_must_be_reopened(tmp_path, monkeypatch):
    connect, opened = sqlite3.connect, []

    def connect_to_disk_that_fails(*words: Any, **options: Any) -> DiskThatFails:
        opened.append(DiskThatFails(connect(*words, **options)))
        return opened[-1]

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", connect_to_disk_that_fails)
        journal = Journal.open(str(tmp_path / "j.db"))
    for disk in opened:
        disk.fails = True
    with pytest.raises(UnsureJournalError, match="open the journal again and read"):
        journal.append([{"n": 1}])
    with pytest.raises(JournalError, match="is closed"):
        journal.append([{"n": 2}])
    with Journal.open(str(tmp_path / "j.db")) as journal:
        assert numbers(journal) == [1]


# A connection that is lost ----------------------------------------------------------------------


def backends(url: str, condition: str = "true") -> list[Any]:
    return sql(
        url,
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'presage controller%' AND "
        + condition,
    )


def terminate(url: str) -> None:
    """Terminate the controllers' sessions, and wait until they have ended."""
    for (pid,) in backends(url):
        sql(url, f"SELECT pg_terminate_backend({pid}, 10000)")


@contextmanager
def appending(journal: Journal, *records: dict[str, Any]) -> Iterator[list[Exception]]:
    """Call a function repeatedly in a thread; yield the list of its errors."""
    errors: list[Exception] = []

    def append() -> None:
        try:
            while True:
                journal.append(records)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield errors
    finally:
        thread.join(30)
    assert not thread.is_alive()


@needs_postgres
def test_a_connection_that_broke_between_appends_is_reopened(postgres_url):
    with Journal.open(postgres_url) as journal:
        journal.append([{"n": 1}])
        terminate(postgres_url)
        assert journal.append([{"n": 2}]) == 2
        terminate(postgres_url)
        assert numbers(journal) == [1, 2]
        with pytest.raises(ConfigError, match="is open in presage controller, process"):
            Journal.open(postgres_url)


@needs_postgres
def test_an_append_on_a_broken_connection_has_no_effect(postgres_url):
    import psycopg

    with Journal.open(postgres_url) as journal, psycopg.connect(postgres_url) as other:
        journal.append([{"n": 1}])
        other.execute("LOCK TABLE presage_journal_entries IN ACCESS EXCLUSIVE MODE")
        with appending(journal, {"n": 2}, {"n": 3}) as errors:
            wait_until(lambda: backends(postgres_url, "wait_event_type = 'Lock'"), 9)
            terminate(postgres_url)
        other.rollback()
        assert type(errors[0]) is JournalError
        assert "check that the server runs" in str(errors[0])
        assert "\n" not in str(errors[0])
        assert journal.append([{"n": 4}]) == 2
        assert numbers(journal) == [1, 4]


@needs_postgres
@pytest.mark.parametrize("is_there", [False, True])
def test_after_a_lost_commit_response_the_journal_must_be_reopened(postgres_url, is_there):
    journal = Journal.open(postgres_url)
    journal.append([{"n": 1}])
    if is_there:  # waits after the commit for a standby that does not exist
        waits = "wait_event = 'SyncRep'"
        sql(postgres_url, "ALTER SYSTEM SET synchronous_standby_names = 'absent'")
    else:  # waits in the commit
        waits = "wait_event = 'PgSleep'"
        sql(
            postgres_url,
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(30); RETURN NULL; END $$",
            "CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON presage_journal_entries "
            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()",
        )
    try:
        sql(postgres_url, "SELECT pg_reload_conf()")
        with appending(journal, {"n": 2}) as errors:
            wait_until(lambda: backends(postgres_url, waits), 20)
            terminate(postgres_url)
    finally:
        sql(postgres_url, "ALTER SYSTEM RESET synchronous_standby_names")
        sql(postgres_url, "SELECT pg_reload_conf()")
    assert type(errors[0]) is UnsureJournalError
    assert "open the journal again" in str(errors[0])
    with pytest.raises(JournalError, match="is closed"):
        journal.append([{"n": 3}])
    with Journal.open(postgres_url) as opened:
        assert opened.last_seq == journal.last_seq + is_there
        assert numbers(opened) == [1] + [2] * (opened.last_seq - 1)


@needs_postgres
def test_a_lock_taken_by_another_controller_is_detected(postgres_url):
    first = Journal.open(postgres_url)
    first.append([{"n": 1}])
    terminate(postgres_url)
    with Journal.open(postgres_url) as second:
        with pytest.raises(JournalError, match=r"connection was lost, and now .* is open in"):
            first.check()
        with pytest.raises(JournalError, match="is closed"):  # even without new entries
            first.append([{"n": "lost"}])

    first = Journal.open(postgres_url)
    first.append([{"n": 2}])
    terminate(postgres_url)
    first.check()  # no other controller has the lock: it reconnects and takes it
    terminate(postgres_url)
    with Journal.open(postgres_url) as second:
        assert second.append([{"n": 3}]) == 3
    with pytest.raises(JournalError, match="last entry became 3, not 2: another controller"):
        first.append([{"n": "lost"}])
    with pytest.raises(JournalError, match="is closed"):
        first.append([{"n": "lost"}])
    with Journal.open(postgres_url) as third:
        assert numbers(third) == [1, 2, 3]


def test_an_entry_of_another_writer_is_never_overwritten(journal, url):
    journal.append([{"n": 1}])
    sql(url, """INSERT INTO presage_journal_entries VALUES (2, 0, NULL, '{"n":"theirs"}', '')""")
    with pytest.raises(
        JournalError, match="another controller has written to it: stop this controller"
    ):
        journal.append([{"n": "ours"}])
    with pytest.raises(JournalError, match="entry 2 is damaged"):
        numbers(journal)


@needs_postgres
def test_a_read_only_server_is_reported(postgres_url):
    Journal.open(postgres_url).close()
    read_only = f"{postgres_url}%20-cdefault_transaction_read_only%3Don"
    with pytest.raises(JournalError, match="use the server that accepts writes"):
        Journal.open(read_only)
