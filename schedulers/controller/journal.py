"""The controller's write-ahead journal: on disk before anybody is told.

Entries are numbered from 1 without gaps, and never changed. A snapshot keeps the state that they
add up to, by key, as of one of them, so that a restart reads it and the entries after. One
controller has a journal open at a time; the lock goes with its process or its connection, and
every write is made under it. Any thread may call, one is served at a time.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from presage.features.errors import ConfigError, JournalError
from presage.schedulers.controller.journal_sqlite import SqliteStore
from presage.schedulers.controller.journal_store import Store
from presage.schedulers.controller.journal_text import as_json, escaped, job_id_of, key_of

VERSION = 1
_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")
_PAGE = 1_000  # entries that are read at once
_CHUNK = 10_000  # entries that are deleted at once: appends wait no longer than for these

_TABLES = (
    "CREATE TABLE presage_journal (version INTEGER NOT NULL, snapshot_seq {big} NOT NULL)",
    "CREATE TABLE presage_journal_entries (seq {big} PRIMARY KEY, at_unix_s DOUBLE PRECISION"
    " NOT NULL, job_id TEXT, record TEXT NOT NULL)",
    "CREATE INDEX presage_journal_by_job ON presage_journal_entries (job_id, seq)"
    " WHERE job_id IS NOT NULL",
    "CREATE TABLE presage_journal_rows (key TEXT PRIMARY KEY, content TEXT NOT NULL)",
    "INSERT INTO presage_journal VALUES ({version}, 0)",
)
_VERSION_THERE = "SELECT version FROM presage_journal"
_SNAPSHOT_SEQ = "SELECT snapshot_seq FROM presage_journal"
_FIRST_AND_LAST = "SELECT min(seq), max(seq) FROM presage_journal_entries"
_APPEND = "INSERT INTO presage_journal_entries VALUES (?, ?, ?, ?)"
_ENTRIES = "SELECT seq, at_unix_s, record FROM presage_journal_entries"
_READ = f"{_ENTRIES} WHERE seq > ? ORDER BY seq LIMIT ?"
_OF_JOB = f"{_ENTRIES} WHERE job_id = ? ORDER BY seq DESC LIMIT ?"
_ROWS = "SELECT key, content FROM presage_journal_rows"
_UPSERT = (
    "INSERT INTO presage_journal_rows VALUES (?, ?)"
    " ON CONFLICT (key) DO UPDATE SET content = excluded.content"
)
_DELETE_ROW = "DELETE FROM presage_journal_rows WHERE key = ?"
_WRITABLE = "UPDATE presage_journal SET snapshot_seq = snapshot_seq"
_MARK = "UPDATE presage_journal SET snapshot_seq = ?"
_NOT_OLDER = (
    "SELECT seq FROM presage_journal_entries WHERE seq <= ? AND at_unix_s >= ? ORDER BY seq LIMIT 1"
)
_PRUNE = "DELETE FROM presage_journal_entries WHERE seq < ?"


class Entry(NamedTuple):
    """A record, its number, and when it was written, by the controller's wall clock."""

    seq: int
    at_unix_s: float
    record: dict[str, Any]


class Journal:
    """A journal that is open, to be closed, or used in ``with``.

    Every method raises JournalError where the database does not do its part; nothing of that call
    is in it then. After an UnsureJournalError, and where another controller has written
    meanwhile, it is closed: open it again and read.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = threading.RLock()
        self._closed = False
        self._last: int | None = None
        try:
            with self._writing():
                self._last = self._prepare()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, url: str) -> Journal:
        """Of ``sqlite:///PATH``, a plain path, or ``postgresql://USER@HOST/DATABASE``.

        What is not there yet is made, save a database of PostgreSQL. The connection must be the
        controller's own: a pooler that shares it between transactions gives the lock away.

        Raises
        ------
        ConfigError
            The URL is of no use, psycopg is not installed, or another controller has it open.
        JournalError
            It cannot be reached or written, or is damaged, another database, or of another version.
        """
        return cls(_store(url))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the next controller have it."""
        with self._mutex:
            self._closed = True
            self._store.close()

    @property
    def closed(self) -> bool:
        """Whether nothing can be written or read any more."""
        return self._closed

    @property
    def last_seq(self) -> int:
        """Number of the newest entry; 0 where none was ever written."""
        assert self._last is not None
        return self._last

    def append(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Put all records on disk, or none; returns the number of the last one.

        A text at ``job_id`` is what :meth:`of_job` finds the record by.

        Raises
        ------
        ValueError
            A record would come back as another one: it is no JSON object.
        """
        texts = [as_json(record, f"record {number}") for number, record in enumerate(records)]
        job_ids = [job_id_of(record) for record in records]
        with self._mutex:
            first = self.last_seq + 1
            if not texts:
                return self.last_seq
            now_s = time.time()
            rows = zip(range(first, first + len(texts)), job_ids, texts, strict=True)
            with self._writing():
                self._store.run_many(
                    _APPEND, [(seq, now_s, job_id, text) for seq, job_id, text in rows]
                )
            self._last = first + len(texts) - 1
            return self._last

    def read(self, after: int = 0) -> Iterator[Entry]:
        """Entries beyond a number, in order, also those that are appended while it is read.

        Those that were pruned are left out; any other that is missing is a JournalError.
        """
        while True:
            with self._looking():
                page = self._store.run(_READ, after, _PAGE)
                pruned_until = self._store.run(_SNAPSHOT_SEQ)[0][0]
            for seq, at_unix_s, text in page:
                if seq != after + 1 and seq > pruned_until + 1:
                    raise JournalError(
                        f"journal {self._store.where}: entries {after + 1} to {seq - 1} are missing"
                        "; put back a copy of it, or name another journal"
                    )
                yield self._entry(seq, at_unix_s, text)
                after = seq
            if len(page) < _PAGE:
                return

    def of_job(self, job_id: str, most: int) -> list[Entry]:
        """The newest entries of a job, ``most`` of them, newest last."""
        with self._looking():
            found = self._store.run(_OF_JOB, escaped(job_id), most)
        return [self._entry(*row) for row in reversed(found)]

    def save(self, rows: Mapping[str, Mapping[str, Any] | None], seq: int) -> None:
        """Put rows that changed into the snapshot, which is then as of entry ``seq``; None deletes.

        Raises
        ------
        ValueError
            A row is no JSON object, or ``seq`` is older than the snapshot or not written yet.
        """
        gone = [(key_of(key),) for key, row in rows.items() if row is None]
        kept = [
            (key_of(key), as_json(row, f"row {key!r}"))
            for key, row in rows.items()
            if row is not None
        ]
        with self._writing():
            saved = self._store.run(_SNAPSHOT_SEQ)[0][0]
            if not saved <= seq <= self.last_seq:
                raise ValueError(f"seq={seq}, must be from {saved} to {self.last_seq}")
            self._store.run_many(_DELETE_ROW, gone)
            self._store.run_many(_UPSERT, kept)
            self._store.run(_MARK, seq)

    def load(self) -> tuple[dict[str, dict[str, Any]], int]:
        """The snapshot's rows, sorted by key, and the number of the entry it is as of."""
        with self._looking():
            rows = self._store.run(_ROWS)
            seq = self._store.run(_SNAPSHOT_SEQ)[0][0]
        loaded = {
            self._parsed(f"key {key}", f'"{key}"'): self._parsed(f"row {key}", content)
            for key, content in rows
        }
        return dict(sorted(loaded.items())), seq

    def prune(self, before_unix_s: float) -> int:
        """Delete the oldest entries, as far as the snapshot covers them and they are all older.

        Returns how many.
        """
        if math.isnan(before_unix_s):
            raise ValueError("before_unix_s is NaN, must be a time")
        with self._looking():
            oldest, _ = self._store.run(_FIRST_AND_LAST)[0]
            saved = self._store.run(_SNAPSHOT_SEQ)[0][0]
            kept = self._store.run(_NOT_OLDER, saved, before_unix_s)
        # Those before the first that stays: no gaps, even where the clock was set back.
        end = kept[0][0] if kept else saved + 1
        if oldest is None or end <= oldest:
            return 0
        for chunk_end in (*range(oldest + _CHUNK, end, _CHUNK), end):
            with self._writing():
                self._store.run(_PRUNE, chunk_end)
        return int(end - oldest)

    def check(self) -> None:
        """See that the journal is this process's still, where that may have changed."""
        if self._store.may_lose_lock:
            with self._looking():
                pass

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._looking():
            yield
            try:
                self._store.commit()
            except BaseException as error:
                if type(error) is not JournalError:  # it may have been done, or may not
                    self.close()
                raise

    @contextmanager
    def _looking(self) -> Iterator[None]:
        with self._mutex:
            try:
                self._begin()
                yield
            finally:
                self._store.rollback()

    def _begin(self) -> None:
        where = self._store.where
        if self._closed:
            raise JournalError(f"journal {where} is closed; open it again and read what it has")
        try:
            is_new = self._store.begin()
        except ConfigError as error:
            if self._last is None:
                raise
            self.close()
            raise JournalError(f"the connection was lost, and now {error}") from error
        if is_new and self._last is not None and (newest := self._newest_of_new()) != self._last:
            self.close()
            raise JournalError(
                f"journal {where}: while the connection was lost, its last entry became {newest}, "
                f"not {self._last}: another controller has written, or an older copy was put back; "
                "stop this one"
            )

    def _newest_of_new(self) -> int:
        try:
            return self._newest()
        except BaseException:
            self._store.close()  # or the next call would take the connection for one that was seen
            raise

    def _prepare(self) -> int:
        """Make a new database a journal, or see that it is one; its last number."""
        tables = self._store.tables()
        if not tables:
            for statement in _TABLES:
                self._store.run(statement.format(big=self._store.big, version=VERSION))
        elif "presage_journal" not in tables:
            raise JournalError(
                f"journal {self._store.where} is another database, with the table "
                f"{min(tables)!r}; name one of its own"
            )
        found = self._store.run(_VERSION_THERE)
        if found != [(VERSION,)]:
            raise JournalError(
                f"journal {self._store.where} is of version {found[0][0] if found else 'none'}, "
                f"this is for {VERSION}; install the Presage that wrote it, or name another journal"
            )
        self._store.run(_WRITABLE)  # now rather than at the first job, say so if it is not
        return self._newest()

    def _newest(self) -> int:
        """Also where all entries were pruned."""
        newest = self._store.run(_FIRST_AND_LAST)[0][1]
        return int(newest or self._store.run(_SNAPSHOT_SEQ)[0][0])

    def _entry(self, seq: int, at_unix_s: float, text: str) -> Entry:
        return Entry(seq, at_unix_s, self._parsed(f"entry {seq}", text))

    def _parsed(self, what: str, text: str) -> Any:
        try:
            return json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise JournalError(
                f"journal {self._store.where}: {what} is damaged ({error}); put back a copy of it"
            ) from error


def _store(url: str) -> Store:
    if url.startswith(_POSTGRES):
        try:
            from presage.schedulers.controller.journal_postgres import PostgresStore
        except ImportError as error:
            raise ConfigError(
                f"a journal on PostgreSQL needs psycopg ({error}); pip install 'psycopg[binary]'"
            ) from error
        return PostgresStore(url)
    path = url.removeprefix(_SQLITE)
    if not path or "://" in path or "\0" in path:
        raise ConfigError(
            "a journal is a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE, not "
            f"{url.rpartition('@')[2]!r}"  # without a password
        )
    return SqliteStore(path)
