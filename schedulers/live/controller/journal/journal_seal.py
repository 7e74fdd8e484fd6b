"""Seal of a journal: what shows that no entry and no row of it was altered, removed or added.

Each entry has a keyed hash (HMAC) of itself and of the hash before it; each row of the snapshot has
one, and they are added up, so that rows can change one by one. The seal is a keyed hash of where
the chain begins and ends, and of the sum. An older copy of the whole journal has a seal that is
right: only a copy kept elsewhere tells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

from presage.schedulers.live.controller.journal.journal_key import JournalKey

# Hashes of 256 bits could be made to add up to the same by choosing among some ten thousand older
# rows (Wagner, "A Generalized Birthday Problem", 2002); of 2,048 bits that takes 2^90 steps.
_SUM_BYTES = 256
_MODULUS = 2 ** (8 * _SUM_BYTES)


@dataclass(frozen=True, slots=True)
class Seal:
    """Where the chain of a journal begins and ends, and what its snapshot adds up to.

    Attributes
    ----------
    anchor_seq, anchor
        Number and hash of the last entry that was pruned; of none at first.
    last_seq, last
        Number and hash of the newest entry.
    snapshot_seq, snapshot
        The entry that the snapshot is as of, and the sum of its rows' hashes.
    """

    anchor_seq: int
    anchor: str
    last_seq: int
    last: str
    snapshot_seq: int
    snapshot: str

    @classmethod
    def first(cls, key: JournalKey) -> Seal:
        """Return the seal of a journal without any entry."""
        begin = key.mac("begin")
        return cls(0, begin, 0, begin, 0, _hex(0))

    def mac(self, key: JournalKey) -> str:
        """Return the keyed hash of all this."""
        return key.mac("seal", *astuple(self))

    def with_rows(self, seq: int, gone: Iterable[str], come: Iterable[str]) -> Seal:
        """Return the seal of a later snapshot, by the hashes of rows that went and came."""
        total = int(self.snapshot, 16) - _total(gone) + _total(come)
        return replace(self, snapshot_seq=seq, snapshot=_hex(total))


def sum_of(macs: Iterable[str]) -> str:
    """Return what the hashes of all rows add up to."""
    return _hex(_total(macs))


def entry_mac(
    key: JournalKey, before: str, seq: int, time_unix_s: float, job_id: str | None, text: str
) -> str:
    """Return the hash of an entry, after that of the entry before it."""
    return key.mac("entry", before, seq, repr(float(time_unix_s)), job_id, text)


def row_mac(key: JournalKey, name: str, text: str) -> str:
    """Return the hash of a row of the snapshot."""
    return key.mac("row", name, text)


def _total(macs: Iterable[str]) -> int:
    wide = (hashlib.shake_256(mac.encode()).digest(_SUM_BYTES) for mac in macs)
    return sum(int.from_bytes(one) for one in wide)


def _hex(total: int) -> str:
    return f"{total % _MODULUS:0{2 * _SUM_BYTES}x}"
