"""The controller's write-ahead journal: on disk before anybody is told.

Entries are numbered from 1 without gaps, and never changed. A snapshot keeps the state that they
add up to, by key, as of one of them, so that a restart reads it and the entries after. One
controller has a journal open at a time; the lock goes with its process or its connection, and
every write is made under it. Any thread may call, one is served at a time.

What is in it is authenticated by a key
(:mod:`presage.schedulers.live.controller.journal.journal_seal`): an entry or a row that was
altered, removed, added or moved is refused where it is read, and all of them when it is loaded.
Environments of jobs are encrypted with that key.
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
from presage.schedulers.live.controller.journal.journal_seal import Seal, entry_mac, row_mac, sum_of
from presage.schedulers.live.controller.journal.journal_store import Store
from presage.schedulers.live.controller.journal.journal_text import (
    as_json,
    escaped,
    job_id_of,
    key_of,
)
from presage.schedulers.live.controller.journal.journal_url import open_store

VERSION = 2
_UNSEALED = 1  # the version before records were authenticated
_PAGE = 1_000  # entries that are read at once
_CHUNK = 10_000  # entries that are deleted at once: appends wait no longer than for these

_KEYS_AT_ONCE = 500


class Entry(NamedTuple):
    """A record, its number, and when it was written, by the controller's wall clock."""

    seq: int
    time_unix_s: float
    record: dict[str, Any]


class Journal:
    """A journal that is open, to be closed, or used in ``with``.

    Every method raises JournalError where the database does not do its part; nothing of that call
    is in it then. After an UnsureJournalError, and where another controller has written
    meanwhile, it is closed: open it again and read.
    """

    def __init__(self, store: Store, key_file: Path | None = None) -> None:
        self._store = store
        self._key_file = key_file or store.key_file
        self._mutex = threading.RLock()
        self._closed = False
        self._seal: Seal | None = None
        try:
            with self._writing():
                self._key, seal = self._prepare()
            self._seal = seal
            self._store.settle()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, url: str, key_file: Path | None = None) -> Journal:
        """Of ``sqlite:///PATH``, a plain path, or ``postgresql://USER@HOST/DATABASE``.

        What is not there yet is made, save a database of PostgreSQL. The connection must be the
        controller's own: a pooler that shares it between transactions gives the lock away.

        Parameters
        ----------
        key_file : Path, optional
            By default PATH.key beside the file; for PostgreSQL cluster/journal.key of the data
            folder.

        Raises
        ------
        ConfigError
            The URL is of no use, psycopg is not installed, or another controller has it open.
        JournalError
            It cannot be reached or written, or is damaged, another database, or of another version;
            or its key is missing or another one.
        """
        return cls(open_store(url), key_file)

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
        assert self._seal is not None
        return self._seal.last_seq

    def append(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Put all records on disk, or none; returns the number of the last one.

        A text at ``job_id`` is what :meth:`of_job` finds the record by.

        Raises
        ------
        ValueError
            A record would come back as another one: it is no JSON object.
        """
        texts = [self._text(record, f"record {number}") for number, record in enumerate(records)]
        job_ids = [job_id_of(record) for record in records]
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
                self._store.run_many(sql.APPEND, rows)
            return seq

    def read(self, after: int = 0) -> Iterator[Entry]:
        """Entries beyond a number, in order, also those that are appended while it is read.

        Those that were pruned are left out; one that is missing or was altered is a JournalError.
        """
        for seq, time_unix_s, text in self._checked(after):
            yield self._entry(seq, time_unix_s, text)

    def of_job(self, job_id: str, most: int) -> list[Entry]:
        """The newest entries of a job, ``most`` of them, newest last."""
        with self._looking():
            found = self._store.run(sql.OF_JOB, escaped(job_id), most)
            seal = self._seal
        assert seal is not None
        for seq, time_unix_s, its_job, text, mac, before in found:
            before = seal.anchor if seq == seal.anchor_seq + 1 else before  # noqa: PLW2901
            if before is None:
                raise self._missing(seq - 1, seq - 1)
            self._check_entry(before, seq, time_unix_s, its_job, text, mac)
        return [self._entry(row[0], row[1], row[3]) for row in reversed(found)]

    def save(self, rows: Mapping[str, Mapping[str, Any] | None], seq: int) -> None:
        """Put rows that changed into the snapshot, which is then as of entry ``seq``; None deletes.

        Raises
        ------
        ValueError
            A row is no JSON object, or ``seq`` is older than the snapshot or not written yet.
        """
        gone = [(key_of(key),) for key, row in rows.items() if row is None]
        kept = [
            (name, text, row_mac(self._key, name, text))
            for name, text in (
                (key_of(key), self._text(row, f"row {key!r}"))
                for key, row in rows.items()
                if row is not None
            )
        ]
        with self._mutex:
            assert self._seal is not None
            if not self._seal.snapshot_seq <= seq <= self.last_seq:
                least = self._seal.snapshot_seq
                raise ValueError(f"seq={seq}, must be from {least} to {self.last_seq}")
            with self._looking():
                before = self._macs([name for name, *_ in (*gone, *kept)])
            seal = self._seal.with_rows(seq, before, [mac for *_, mac in kept])
            with self._resealing(seal):
                self._store.run_many(sql.DELETE_ROW, gone)
                self._store.run_many(sql.UPSERT, kept)

    def load(self) -> tuple[dict[str, dict[str, Any]], int]:
        """The snapshot's rows, sorted by key, and the number of the entry it is as of.

        All of the journal is checked, also the entries that the snapshot covers.
        """
        with self._looking():
            rows, seal = self._store.run(sql.ROWS), self._seal
        assert seal is not None
        for name, content, mac in rows:
            if row_mac(self._key, name, content) != mac:
                raise self._damaged(f'row "{name}" of the snapshot')
        if sum_of(mac for *_, mac in rows) != seal.snapshot:
            raise JournalError(
                f"journal {self._store.where}: rows of its snapshot are missing, or of an earlier "
                "one; put back a copy of it"
            )
        for _ in self._checked(0):
            pass
        loaded = {
            self._parsed(f"key {name}", f'"{name}"'): self._parsed(f"row {name}", content)
            for name, content, _ in rows
        }
        return dict(sorted(loaded.items())), seal.snapshot_seq

    def prune(self, before_unix_s: float) -> int:
        """Delete the oldest entries, as far as the snapshot covers them and they are all older.

        Returns how many.
        """
        if math.isnan(before_unix_s):
            raise ValueError("before_unix_s is NaN, must be a time")
        with self._mutex:
            assert self._seal is not None
            saved = self._seal.snapshot_seq
            with self._looking():
                oldest, _ = self._store.run(sql.FIRST_AND_LAST)[0]
                kept = self._store.run(sql.NOT_OLDER, saved, before_unix_s)
            # Those before the first that stays: no gaps, even where the clock was set back.
            end = kept[0][0] if kept else saved + 1
            if oldest is None or end <= oldest:
                return 0
            for chunk_end in (*range(oldest + _CHUNK, end, _CHUNK), end):
                self._prune_to(chunk_end)
            return int(end - oldest)

    def _prune_to(self, end: int) -> None:
        assert self._seal is not None
        with self._looking():
            anchor = self._store.run(sql.MAC_OF, end - 1)
        if not anchor:
            raise self._missing(end - 1, end - 1)
        with self._resealing(replace(self._seal, anchor_seq=end - 1, anchor=anchor[0][0])):
            self._store.run(sql.PRUNE, end)

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

    @contextmanager
    def _resealing(self, seal: Seal) -> Iterator[None]:
        """Write, and the seal of what is there then."""
        with self._writing():
            yield
            self._set_seal(self._key, seal)
        self._seal = seal

    def _set_seal(self, key: JournalKey, seal: Seal) -> None:
        self._store.run(sql.SET_SEAL, VERSION, key.key_id, seal.mac(key), *astuple(seal))

    def _begin(self) -> None:
        where = self._store.where
        if self._closed:
            raise JournalError(f"journal {where} is closed; open it again and read what it has")
        try:
            is_new = self._store.begin()
        except ConfigError as error:
            if self._seal is None:
                raise
            self.close()
            raise JournalError(f"the connection was lost, and now {error}") from error
        before = None if self._seal is None else self._seal.last_seq
        if is_new and before is not None and (newest := self._newest_of_new()) != before:
            self.close()
            raise JournalError(
                f"journal {where}: while the connection was lost, its last entry became {newest}, "
                f"not {before}: another controller has written, or an older copy was put back; "
                "stop this one"
            )

    def _newest_of_new(self) -> int:
        try:
            return self._newest()
        except BaseException:
            self._store.close()  # or the next call would take the connection for one that was seen
            raise

    def _prepare(self) -> tuple[JournalKey, Seal]:
        """Make a new database a journal, or see that it is one; its key and its seal."""
        tables = self._store.tables()
        if not tables:
            for statement in sql.TABLES:
                self._store.run(statement.format(big=self._store.big))
        elif "presage_journal" not in tables:
            raise JournalError(
                f"journal {self._store.where} is another database, with the table "
                f"{min(tables)!r}; name one of its own"
            )
        found = self._store.run(sql.VERSION_THERE)
        if found == [(_UNSEALED,)]:
            return self._seal_all(is_new=not tables)
        if found != [(VERSION,)]:
            raise JournalError(
                f"journal {self._store.where} is of version {found[0][0] if found else 'none'}, "
                f"this is for {VERSION}; install the Presage that wrote it, or name another journal"
            )
        key = read_key(self._key_file, self._store.where)
        seal = self._stored_seal(key)
        self._set_seal(key, seal)  # now rather than at the first job, say so if it may not be
        return key, seal

    def _stored_seal(self, key: JournalKey) -> Seal:
        where = self._store.where
        key_id, mac, *values = self._store.run(sql.SEAL)[0]
        seal = Seal(*values)
        if key_id != key.key_id:
            raise JournalError(
                f"journal {where} was written with another key than {self._key_file}; put the "
                "right one back, or name it by --journal-key"
            )
        if seal.mac(key) != mac:
            raise JournalError(
                f"journal {where}: its seal was altered; put back a copy of the journal"
            )
        newest = self._newest() or seal.anchor_seq
        if newest < seal.last_seq:
            raise self._missing(newest + 1, seal.last_seq)
        return seal

    def _seal_all(self, *, is_new: bool) -> tuple[JournalKey, Seal]:
        """Bring a journal of the version before, or a new one, to this one."""
        if not is_new and self._key_file.exists():
            # Else a writer of the database without its key could take the hashes away, alter what
            # they covered, and have that authenticated here.
            raise JournalError(
                f"journal {self._store.where} is of version {_UNSEALED}, which has no hashes, and "
                f"its key {self._key_file} is there: it was written after hashes were in use; put "
                "back a copy of it, or name another key by --journal-key if it is old"
            )
        key = make_key(self._key_file, self._store.where)
        for statement in sql.SEALED_TABLES:
            self._store.run(statement.format(big=self._store.big))
        snapshot_seq = self._store.run("SELECT snapshot_seq FROM presage_journal")[0][0]
        oldest = self._store.run(sql.FIRST_AND_LAST)[0][0] or snapshot_seq + 1
        if oldest > snapshot_seq + 1:
            raise self._missing(snapshot_seq + 1, oldest - 1)
        seq, mac = oldest - 1, Seal.first(key).anchor
        anchor = seq, mac
        while page := self._store.run(sql.READ, seq, _PAGE):
            sealed = []
            for number, time_unix_s, job_id, text, _ in page:
                if number != seq + 1:
                    raise self._missing(seq + 1, number - 1)
                hidden = as_json(key.hide(self._plain(f"entry {number}", text)), "entry")
                seq, mac = number, entry_mac(key, mac, number, time_unix_s, job_id, hidden)
                sealed.append((hidden, mac, number))
            self._store.run_many(sql.RESEAL, sealed)
        rows = [
            (name, hidden, row_mac(key, name, hidden))
            for name, content, _ in self._store.run(sql.ROWS)
            for hidden in [as_json(key.hide(self._plain(f"row {name}", content)), "row")]
        ]
        self._store.run_many(sql.UPSERT, rows)
        seal = Seal(*anchor, seq, mac, snapshot_seq, sum_of(mac for *_, mac in rows))
        self._set_seal(key, seal)
        return key, seal

    def _newest(self) -> int:
        """Also where all entries were pruned."""
        newest = self._store.run(sql.FIRST_AND_LAST)[0][1]
        return int(newest or self._store.run("SELECT anchor_seq FROM presage_journal")[0][0])

    def _checked(self, after: int) -> Iterator[tuple[int, float, str]]:
        """Entries as they are kept, once their hashes were found to be right."""
        mac = None
        while True:
            with self._looking():
                seal = self._seal
                assert seal is not None
                if mac is None or after < seal.anchor_seq:
                    after = max(after, seal.anchor_seq)
                    mac = self._mac_of(after, seal)
                page = self._store.run(sql.READ, after, _PAGE)
            for seq, time_unix_s, job_id, text, its_mac in page:
                if seq != after + 1:
                    raise self._missing(after + 1, seq - 1)
                self._check_entry(mac, seq, time_unix_s, job_id, text, its_mac)
                yield seq, time_unix_s, text
                after, mac = seq, its_mac
            if len(page) < _PAGE:
                if after < seal.last_seq:
                    raise self._missing(after + 1, seal.last_seq)
                return

    def _mac_of(self, seq: int, seal: Seal) -> str:
        """Hash of an entry, which may be the last that was pruned."""
        if seq == seal.anchor_seq:
            return seal.anchor
        if seq >= seal.last_seq:
            return seal.last
        found = self._store.run(sql.MAC_OF, seq)
        if not found:
            raise self._missing(seq, seq)
        return str(found[0][0])

    def _macs(self, names: Sequence[str]) -> list[str]:
        """Hashes of the snapshot's rows of these names."""
        found: list[str] = []
        for first in range(0, len(names), _KEYS_AT_ONCE):
            some = names[first : first + _KEYS_AT_ONCE]
            marks = ", ".join("?" * len(some))
            found += [mac for (mac,) in self._store.run(f"{sql.MACS} ({marks})", *some)]
        return found

    def _check_entry(
        self, before: str, seq: int, time_unix_s: float, job_id: str | None, text: str, mac: str
    ) -> None:
        if entry_mac(self._key, before, seq, time_unix_s, job_id, text) != mac:
            raise self._damaged(f"entry {seq}")

    def _damaged(self, what: str) -> JournalError:
        return JournalError(
            f"journal {self._store.where}: {what} is damaged: it is not what was written there; "
            "put back a copy of the journal"
        )

    def _missing(self, first: int, last: int) -> JournalError:
        return JournalError(
            f"journal {self._store.where}: entries {first} to {last} are missing; put back a copy "
            "of it, or name another journal"
        )

    def _text(self, record: Mapping[str, Any], what: str) -> str:
        """A record as it is kept."""
        text, hidden = as_json(record, what), self._key.hide(record)
        return text if hidden is record else as_json(hidden, what)

    def _entry(self, seq: int, time_unix_s: float, text: str) -> Entry:
        return Entry(seq, time_unix_s, self._parsed(f"entry {seq}", text))

    def _parsed(self, what: str, text: str) -> Any:
        return self._read(what, lambda: self._key.reveal(json.loads(text)))

    def _plain(self, what: str, text: str) -> Any:
        """What was written before there was a key."""
        return self._read(what, lambda: json.loads(text))

    def _read(self, what: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (TypeError, ValueError, RecursionError) as error:
            raise JournalError(
                f"journal {self._store.where}: {what} is damaged ({error}); put back a copy of it"
            ) from error
