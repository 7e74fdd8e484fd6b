"""Write-ahead journal of the controller: records are on disk before they take effect.

Entries are numbered from 1 without gaps, and never changed. A snapshot contains the state after one
of the entries, in rows by key, so that a restart reads the snapshot and the entries after it. One
controller at a time has a journal open: every write is made under a lock, which belongs to its
process or its connection. Methods may be called from any thread.

The content is authenticated by a key
(:mod:`presage.schedulers.live.controller.journal.journal_seal`): reading an entry or a row that was
altered, removed, added or moved is an error, and loading checks all of them. The environments of
jobs are encrypted with that key.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, NamedTuple

from presage.errors import ConfigError, JournalError
from presage.schedulers.live.controller.journal import journal_sql as sql
from presage.schedulers.live.controller.journal.journal_key import JournalKey, make_key, read_key
from presage.schedulers.live.controller.journal.journal_seal import (
    Seal,
    entry_mac,
    row_mac,
    sum_hashes,
)
from presage.schedulers.live.controller.journal.journal_store import Store
from presage.schedulers.live.controller.journal.journal_text import (
    as_json,
    escaped,
    job_key,
    text_key,
)
from presage.schedulers.live.controller.journal.journal_url import open_store

VERSION = 3
_UNSEALED = 1  # version without authentication
_PAGE = 1_000  # entries per read
_CHUNK = 10_000  # entries per deletion, which delays appends

_KEYS_AT_ONCE = 500


class Entry(NamedTuple):
    """Record, its number, and when it was written, by the controller's wall clock."""

    seq: int
    time_unix_s: float
    record: dict[str, Any]


class Journal:
    """Open journal; a context manager that closes it.

    Every method raises JournalError if the database fails; the call has no effect then. After an
    UnsureJournalError, and if another controller has written meanwhile, the journal is closed: open
    it again and read it.
    """

    def __init__(self, store: Store, key_file: Path | None = None) -> None:
        self.store = store
        self._key_file = key_file or store.key_file
        self._mutex = threading.RLock()
        self._closed = False
        self._seal: Seal | None = None
        try:
            with self._writing():
                self._key, seal = self._prepare()
            self._seal = seal
            self.store.settle()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, url: str, key_file: Path | None = None) -> Journal:
        """Open ``sqlite:///PATH``, a plain path, or ``postgresql://USER@HOST/DATABASE``.

        Files and tables are created, but not a PostgreSQL database. The connection must not be
        shared: a pooler that shares it between transactions would lose the lock.

        Parameters
        ----------
        key_file : Path, optional
            By default PATH.key next to the file; for PostgreSQL, cluster/journal.key in the data
            folder.

        Raises
        ------
        ConfigError
            The URL is not valid, psycopg is not installed, or another controller has it open.
        JournalError
            It cannot be reached or written, is damaged, has another version or is not a journal; or
            its key is missing or another key.
        """
        return cls(open_store(url), key_file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the journal and release its lock."""
        with self._mutex:
            self._closed = True
            self.store.close()

    @property
    def is_closed(self) -> bool:
        """Whether the journal is closed."""
        return self._closed

    def token(self, name: str) -> str:
        """Return a secret of this cluster; it is the same for the same name, on any machine."""
        return self._key.mac("token", name)

    @property
    def last_seq(self) -> int:
        """Number of the newest entry; 0 before the first."""
        assert self._seal is not None
        return self._seal.last_seq

    def append(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Write all records to disk, or none; return the number of the last one.

        :meth:`job_entries` finds a record by its string ``job_id``.

        Raises
        ------
        ValueError
            A record is not a JSON object that is equal after reading it back.
        """
        texts = [self._text(record, f"record {number}") for number, record in enumerate(records)]
        job_ids = [job_key(record) for record in records]
        with self._mutex:
            if not texts:
                return self.last_seq
            assert self._seal is not None
            now_s, seq, mac, rows = time.time(), self._seal.last_seq, self._seal.last, []
            for job_id, text in zip(job_ids, texts, strict=True):
                seq += 1
                mac = entry_mac(self._key, mac, seq, now_s, job_id, text)
                rows.append((seq, now_s, job_id, text, mac))
            with self._resealing(replace(self._seal, last_seq=seq, last=mac)):
                self.store.run_many(sql.APPEND, rows)
            return seq

    def read(self, after: int = 0) -> Iterator[Entry]:
        """Yield the entries after a number, in order, including those appended meanwhile.

        Pruned entries are skipped. Raises JournalError for a missing or altered entry.
        """
        for seq, time_unix_s, text in self._checked(after):
            yield self._entry(seq, time_unix_s, text)

    def job_entries(self, job_id: str, limit: int) -> list[Entry]:
        """Return the newest entries of a job, at most ``limit``, newest last."""
        with self._reading():
            found = self.store.run(sql.JOB_ENTRIES, escaped(job_id), limit)
            seal = self._seal
        assert seal is not None
        for seq, time_unix_s, entry_job, text, mac, before in found:
            before = seal.anchor if seq == seal.anchor_seq + 1 else before  # noqa: PLW2901
            if before is None:
                raise self._missing(seq - 1, seq - 1)
            self._check_entry(before, seq, time_unix_s, entry_job, text, mac)
        return [self._entry(row[0], row[1], row[3]) for row in reversed(found)]

    def save(self, rows: Mapping[str, Mapping[str, Any] | None], seq: int) -> None:
        """Write changed rows to the snapshot, which then contains entry ``seq``; None deletes.

        Raises
        ------
        ValueError
            A row is not a JSON object, or ``seq`` is before the snapshot or not written yet.
        """
        removed = [(text_key(key),) for key, row in rows.items() if row is None]
        updated = [
            (name, text, row_mac(self._key, name, text))
            for name, text in (
                (text_key(key), self._text(row, f"row {key!r}"))
                for key, row in rows.items()
                if row is not None
            )
        ]
        with self._mutex:
            assert self._seal is not None
            if not self._seal.snapshot_seq <= seq <= self.last_seq:
                first = self._seal.snapshot_seq
                raise ValueError(f"seq={seq}, must be between {first} and {self.last_seq}")
            with self._reading():
                before = self._macs([name for name, *_ in (*removed, *updated)])
            seal = self._seal.with_rows(seq, before, [mac for *_, mac in updated])
            with self._resealing(seal):
                self.store.run_many(sql.DELETE_ROW, removed)
                self.store.run_many(sql.UPSERT, updated)

    def load(self) -> tuple[dict[str, dict[str, Any]], int]:
        """Return the snapshot's rows, sorted by key, and the number of its last entry.

        The whole journal is checked, including the entries that the snapshot contains.
        """
        with self._reading():
            rows, seal = self.store.run(sql.ROWS), self._seal
        assert seal is not None
        for name, content, mac in rows:
            if row_mac(self._key, name, content) != mac:
                raise self._damaged(f'row "{name}" of the snapshot')
        if sum_hashes(mac for *_, mac in rows) != seal.snapshot:
            raise JournalError(
                f"journal {self.store.where}: rows of its snapshot are missing, or belong to "
                "an earlier snapshot; restore a backup of the journal"
            )
        for _ in self._checked(0):
            pass
        loaded = {
            self._parsed(f"key {name}", f'"{name}"'): self._parsed(f"row {name}", content)
            for name, content, _ in rows
        }
        return dict(sorted(loaded.items())), seal.snapshot_seq

    def prune(self, before_unix_s: float) -> int:
        """Delete the oldest entries that the snapshot contains; return their number.

        Deletion stops at the first entry that is not older than ``before_unix_s``.
        """
        if math.isnan(before_unix_s):
            raise ValueError("before_unix_s is NaN, must be a time")
        with self._mutex:
            assert self._seal is not None
            saved = self._seal.snapshot_seq
            with self._reading():
                oldest, _ = self.store.run(sql.FIRST_AND_LAST)[0]
                remaining = self.store.run(sql.NOT_OLDER, saved, before_unix_s)
            # Those before the first that stays: no gaps, even where the clock was set back.
            end = remaining[0][0] if remaining else saved + 1
            if oldest is None or end <= oldest:
                return 0
            for chunk_end in (*range(oldest + _CHUNK, end, _CHUNK), end):
                self._prune_to(chunk_end)
            return int(end - oldest)

    def _prune_to(self, end: int) -> None:
        assert self._seal is not None
        with self._reading():
            anchor = self.store.run(sql.MAC_OF, end - 1)
        if not anchor:
            raise self._missing(end - 1, end - 1)
        with self._resealing(replace(self._seal, anchor_seq=end - 1, anchor=anchor[0][0])):
            self.store.run(sql.PRUNE, end)

    def check(self) -> None:
        """Raise JournalError if this process may have lost the journal's lock."""
        if self.store.may_lose_lock:
            with self._reading():
                pass

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._reading():
            yield
            try:
                self.store.commit()
            except BaseException as error:
                if type(error) is not JournalError:  # the outcome is unknown
                    self.close()
                raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._mutex:
            try:
                self._begin()
                yield
            finally:
                self.store.rollback()

    @contextmanager
    def _resealing(self, seal: Seal) -> Iterator[None]:
        """Write, together with the new seal."""
        with self._writing():
            yield
            self._set_seal(self._key, seal)
        self._seal = seal

    def _set_seal(self, key: JournalKey, seal: Seal) -> None:
        self.store.run(sql.SET_SEAL, VERSION, key.key_id, seal.mac(key), *astuple(seal))

    def _begin(self) -> None:
        where = self.store.where
        if self._closed:
            raise JournalError(f"journal {where} is closed; open it again and read it")
        try:
            is_new = self.store.begin()
        except ConfigError as error:
            if self._seal is None:
                raise
            self.close()
            raise JournalError(f"the connection was lost, and now {error}") from error
        before = None if self._seal is None else self._seal.last_seq
        if is_new and before is not None and (newest := self._newest_after_reconnect()) != before:
            self.close()
            raise JournalError(
                f"journal {where}: while the connection was lost, its last entry became {newest}, "
                f"not {before}: another controller has written, or an older copy was restored; "
                "stop this controller"
            )

    def _newest_after_reconnect(self) -> int:
        try:
            return self._newest()
        except BaseException:
            self.store.close()  # else the next call would treat the connection as checked
            raise

    def _prepare(self) -> tuple[JournalKey, Seal]:
        """Create the tables of a new journal, or check an existing one; return key and seal."""
        tables = self.store.tables()
        if not tables:
            for statement in sql.TABLES:
                self.store.run(statement.format(big=self.store.big))
        elif "presage_journal" not in tables:
            raise JournalError(
                f"journal {self.store.where} is not a journal: it has the table {min(tables)!r}; "
                "use a separate database"
            )
        found = self.store.run(sql.STORED_VERSION)
        if found == [(_UNSEALED,)]:
            return self._seal_all(is_new=not tables)
        if found != [(VERSION,)]:
            raise JournalError(
                f"journal {self.store.where} has version {found[0][0] if found else 'none'}, must "
                f"be {VERSION}; install the Presage that wrote it, or use another journal"
            )
        key = read_key(self._key_file, self.store.where)
        seal = self._stored_seal(key)
        self._set_seal(key, seal)  # fail now, and not at the first job, if it is not writable
        return key, seal

    def _stored_seal(self, key: JournalKey) -> Seal:
        where = self.store.where
        key_id, mac, *values = self.store.run(sql.SEAL)[0]
        seal = Seal(*values)
        if key_id != key.key_id:
            raise JournalError(
                f"journal {where} was written with another key than {self._key_file}; restore that "
                "key, or pass its path with --journal-key"
            )
        if seal.mac(key) != mac:
            raise JournalError(
                f"journal {where}: its seal was altered; restore a backup of the journal"
            )
        newest = self._newest() or seal.anchor_seq
        if newest < seal.last_seq:
            raise self._missing(newest + 1, seal.last_seq)
        return seal

    def _seal_all(self, *, is_new: bool) -> tuple[JournalKey, Seal]:
        """Seal a new journal, or one of the previous version."""
        if not is_new and self._key_file.exists():
            # Else a user that can write the database, without the key, could remove the hashes,
            # alter the content, and have it authenticated here.
            raise JournalError(
                f"journal {self.store.where} has version {_UNSEALED}, without hashes, although "
                f"its key {self._key_file} exists: hashes may have been removed; restore a backup, "
                "or pass another key with --journal-key if the journal is that old"
            )
        key = make_key(self._key_file, self.store.where)
        for statement in sql.SEALED_TABLES:
            self.store.run(statement.format(big=self.store.big))
        snapshot_seq = self.store.run("SELECT snapshot_seq FROM presage_journal")[0][0]
        oldest = self.store.run(sql.FIRST_AND_LAST)[0][0] or snapshot_seq + 1
        if oldest > snapshot_seq + 1:
            raise self._missing(snapshot_seq + 1, oldest - 1)
        seq, mac = oldest - 1, Seal.first(key).anchor
        anchor = seq, mac
        while page := self.store.run(sql.READ, seq, _PAGE):
            sealed = []
            for number, time_unix_s, job_id, text, _ in page:
                if number != seq + 1:
                    raise self._missing(seq + 1, number - 1)
                hidden = as_json(key.hide(self._plain(f"entry {number}", text)), "entry")
                seq, mac = number, entry_mac(key, mac, number, time_unix_s, job_id, hidden)
                sealed.append((hidden, mac, number))
            self.store.run_many(sql.RESEAL, sealed)
        rows = [
            (name, hidden, row_mac(key, name, hidden))
            for name, content, _ in self.store.run(sql.ROWS)
            for hidden in [as_json(key.hide(self._plain(f"row {name}", content)), "row")]
        ]
        self.store.run_many(sql.UPSERT, rows)
        seal = Seal(*anchor, seq, mac, snapshot_seq, sum_hashes(mac for *_, mac in rows))
        self._set_seal(key, seal)
        return key, seal

    def _newest(self) -> int:
        """Return the number of the newest entry, also if all entries were pruned."""
        newest = self.store.run(sql.FIRST_AND_LAST)[0][1]
        return int(newest or self.store.run("SELECT anchor_seq FROM presage_journal")[0][0])

    def _checked(self, after: int) -> Iterator[tuple[int, float, str]]:
        """Yield the stored entries after checking their hashes."""
        mac = None
        while True:
            with self._reading():
                seal = self._seal
                assert seal is not None
                if mac is None or after < seal.anchor_seq:
                    after = max(after, seal.anchor_seq)
                    mac = self._mac_of(after, seal)
                page = self.store.run(sql.READ, after, _PAGE)
            for seq, time_unix_s, job_id, text, entry_hash in page:
                if seq != after + 1:
                    raise self._missing(after + 1, seq - 1)
                self._check_entry(mac, seq, time_unix_s, job_id, text, entry_hash)
                yield seq, time_unix_s, text
                after, mac = seq, entry_hash
            if len(page) < _PAGE:
                if after < seal.last_seq:
                    raise self._missing(after + 1, seal.last_seq)
                return

    def _mac_of(self, seq: int, seal: Seal) -> str:
        """Return the hash of an entry, which may be the last pruned one."""
        if seq == seal.anchor_seq:
            return seal.anchor
        if seq >= seal.last_seq:
            return seal.last
        found = self.store.run(sql.MAC_OF, seq)
        if not found:
            raise self._missing(seq, seq)
        return str(found[0][0])

    def _macs(self, names: Sequence[str]) -> list[str]:
        """Return the hashes of rows of the snapshot."""
        found: list[str] = []
        for first in range(0, len(names), _KEYS_AT_ONCE):
            batch = names[first : first + _KEYS_AT_ONCE]
            marks = ", ".join("?" * len(batch))
            found += [mac for (mac,) in self.store.run(f"{sql.MACS} ({marks})", *batch)]
        return found

    def _check_entry(
        self, before: str, seq: int, time_unix_s: float, job_id: str | None, text: str, mac: str
    ) -> None:
        if entry_mac(self._key, before, seq, time_unix_s, job_id, text) != mac:
            raise self._damaged(f"entry {seq}")

    def _damaged(self, what: str) -> JournalError:
        return JournalError(
            f"journal {self.store.where}: {what} is damaged: it was altered after it was written; "
            "restore a backup of the journal"
        )

    def _missing(self, first: int, last: int) -> JournalError:
        return JournalError(
            f"journal {self.store.where}: entries {first} to {last} are missing; restore a backup "
            "or use another journal"
        )

    def _text(self, record: Mapping[str, Any], what: str) -> str:
        """Return the stored text of a record."""
        text, hidden = as_json(record, what), self._key.hide(record)
        return text if hidden is record else as_json(hidden, what)

    def _entry(self, seq: int, time_unix_s: float, text: str) -> Entry:
        return Entry(seq, time_unix_s, self._parsed(f"entry {seq}", text))

    def _parsed(self, what: str, text: str) -> Any:
        return self._read(what, lambda: self._key.reveal(json.loads(text)))

    def _plain(self, what: str, text: str) -> Any:
        """Return content that was written without a key."""
        return self._read(what, lambda: json.loads(text))

    def _read(self, what: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (TypeError, ValueError, RecursionError) as error:
            raise JournalError(
                f"journal {self.store.where}: {what} is damaged ({error}); restore a backup of it"
            ) from error
