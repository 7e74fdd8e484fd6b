"""Seal of a journal: detects entries and rows that were altered, removed or added.

Each entry has a keyed hash (HMAC) of itself and of the previous hash. Each row of the snapshot has
a hash as well; the seal contains their sum, so that rows can change one by one. The seal is a keyed
hash of the ends of the chain and of the sum. It does not detect that the whole journal was replaced
by an older copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

from presage.schedulers.live.controller.journal.journal_key import JournalKey

# With hashes of 256 bits, a combination of some ten thousand older rows could be found that has
# the same sum (Wagner, "A Generalized Birthday Problem", 2002); with 2,048 bits that takes 2^90
# steps.
_SUM_BYTES = 256
_MODULUS = 2 ** (8 * _SUM_BYTES)


@dataclass(frozen=True, slots=True)
class Seal:
    """Ends of the chain of a journal's entries, and the sum of its snapshot.

    Attributes
    ----------
    anchor_seq, anchor
        Number and hash of the last pruned entry; 0 and an initial hash before the first.
    last_seq, last
        Number and hash of the newest entry.
    snapshot_seq, snapshot
        Last entry that the snapshot contains, and the sum of the hashes of its rows.
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
        """Return the keyed hash of all attributes."""
        return key.mac("seal", *astuple(self))

    def with_rows(self, seq: int, removed: Iterable[str], added: Iterable[str]) -> Seal:
        """Return the seal of a later snapshot, from the hashes of removed and added rows."""
        total = int(self.snapshot, 16) - _total(removed) + _total(added)
        return replace(self, snapshot_seq=seq, snapshot=_hex(total))


def sum_hashes(macs: Iterable[str]) -> str:
    """Return the sum of the hashes of all rows."""
    return _hex(_total(macs))


def entry_mac(
    key: JournalKey, before: str, seq: int, time_unix_s: float, job_id: str | None, text: str
) -> str:
    """Return the hash of an entry, which includes the hash of the previous entry."""
    return key.mac("entry", before, seq, repr(float(time_unix_s)), job_id, text)


def row_mac(key: JournalKey, name: str, text: str) -> str:
    """Return the hash of a row of the snapshot."""
    return key.mac("row", name, text)


def _total(macs: Iterable[str]) -> int:
    digests = (hashlib.shake_256(mac.encode()).digest(_SUM_BYTES) for mac in macs)
    return sum(int.from_bytes(digest) for digest in digests)


def _hex(total: int) -> str:
    return f"{total % _MODULUS:0{2 * _SUM_BYTES}x}"
