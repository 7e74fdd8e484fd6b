"""Layout of a table of decisions: a header of 64 bytes, and one byte for each AllReduce.

All numbers are little-endian. ``presage_inc_table.h`` reads the same layout in C::

    0   magic         u32  0x544E4950, "PINT"
    4   version       u32  1
    8   sequence      u64  odd while the owner writes what follows it
    16  epoch         u64  epoch of the view
    24  first number  u64  number of the AllReduce that the first decision is for
    32  length        u32  number of decisions
    36  state         u32  1 while the owner publishes; 2 after it has closed the table
    40  checksum      u32  CRC-32 of bytes 16 to 40 and of the decisions
    44  capacity      u32  bytes for decisions; never changes
    48  next number   u64  number of the AllReduce that the rank starts next
    56  reserved      u64
    64  decisions     bytes; an odd one allows the switch

A reader copies the table when the sequence has changed. The copy is valid if the sequence was even,
is the same afterwards, and the checksum is right. The checksum makes this independent of the order
in which the processor writes to memory. The next number is written alone, by one store.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from presage.collectives.core.view import JobView

MAGIC = 0x544E4950
VERSION = 1
OPEN, CLOSED = 1, 2
SEQUENCE_WORD, NEXT_WORD = 1, 6  # of 8 bytes
CONTENT = 16  # begin of what the sequence guards
HEADER_BYTES = 64
MAX_CAPACITY = 1 << 24
DEFAULT_FOLDER = Path("/dev/shm")  # noqa: S108 - memory, not a temporary file

_HEADER = struct.Struct("<IIQQQIIIIQQ")
_GUARDED = struct.Struct("<QQII")  # epoch, first number, length, state


class Content(NamedTuple):
    """What the sequence guards: a view, and whether its owner has closed the table."""

    view: JobView
    is_closed: bool


def table_path(job: str, rank: int, folder: Path = DEFAULT_FOLDER) -> Path:
    """Return the path of a rank's table; characters that a file name cannot have are escaped."""
    return folder / f"presage-inc-{quote(job, safe=':')}-{rank}"


def pack_header(capacity: int) -> bytes:
    """Return the header of a table that has no view yet."""
    guarded = _GUARDED.pack(0, 0, 0, OPEN)
    return _HEADER.pack(MAGIC, VERSION, 0, 0, 0, 0, OPEN, zlib.crc32(guarded), capacity, 0, 0)


def pack_content(view: JobView, state: int) -> tuple[bytes, bytes]:
    """Return the guarded part of the header with its checksum, and the decisions.

    Raises
    ------
    ValueError
        A number is negative or above 2**64 - 1.
    """
    try:
        guarded = _GUARDED.pack(view.epoch, view.first_number, len(view.decisions), state)
    except struct.error:
        raise ValueError(f"epoch {view.epoch} or number {view.first_number} is invalid") from None
    checksum = zlib.crc32(view.decisions, zlib.crc32(guarded))
    return guarded + struct.pack("<I", checksum), view.decisions


def unpack_content(content: memoryview) -> Content | None:
    """Return the content of a copy of the table; None if it is torn."""
    fields = _HEADER.unpack_from(content)
    epoch, first, length, state, checksum, capacity = fields[3:9]
    if length > min(capacity, len(content) - HEADER_BYTES):
        return None
    decisions = bytes(content[HEADER_BYTES : HEADER_BYTES + length])
    guarded = content[CONTENT : CONTENT + _GUARDED.size]
    if zlib.crc32(decisions, zlib.crc32(guarded)) != checksum:
        return None
    return Content(JobView(epoch, first, decisions), state == CLOSED)


def capacity_of(header: bytes) -> int | None:
    """Return the capacity in the header of a file; None if it is no table of this version."""
    if len(header) < HEADER_BYTES:
        return None
    magic, version, *_, capacity, _, _ = _HEADER.unpack_from(header)
    return capacity if (magic, version) == (MAGIC, VERSION) else None
