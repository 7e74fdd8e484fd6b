"""Protocol between ranks and the switch: frames with a header of 32 bytes, over TCP.

All numbers are little-endian. A header has::

    magic     u32  0x434E4950, "PINC"
    version   u8   1
    kind      u8   a Kind
    code      u16  a Code, in REFUSED; otherwise 0
    size      u32  bytes of the payload that follows
    chunk     u32  index of a chunk, in CHUNK and SUM; otherwise 0
    number    u64  number of the AllReduce; NO_NUMBER if the frame is about none
    epoch     u64  epoch of the view by which the sender decided

A connection of a rank begins with HELLO, which the switch answers by WELCOME (limits) or REFUSED.
For each AllReduce every rank sends BEGIN and then its chunks in order, without waiting for an
answer. When the switch has chunk i of all ranks, it adds them in the order of ranks and sends the
sum to each. A rank sends chunk i only after it has received sum i - window, which bounds the
memory of the switch. A buffer without elements has one chunk of 0 bytes.

Numbers of a job only increase. The switch refuses a number by REFUSED to every rank that has begun
it, and to each that begins it later. A number whose last sum was computed is never refused, and a
refused number is never summed: all ranks have the same outcome, unless they lose the switch. Chunks
of a refused number are dropped. CANCEL refuses a number unless its last sum was computed.

The first AllReduce without a free slot is refused at once, with NO_SLOT. A job has its slot from
its first BEGIN until all ranks have the last sum. STATS and FENCE need no HELLO. FENCE raises the
lowest epoch that the switch accepts.

A controlled switch sums only for jobs that its controller admitted. The controller begins a
connection by GREET, which STARTED answers with the incarnation of the switch: a number that is
higher at each start. GREET has the highest incarnation that the controller knows. A switch below
that forgets its admission and takes a higher one, because its clock went back. ADMISSION then has
the incarnation that it is meant for, a token, and all admitted jobs with the oldest accepted epoch
of each. The switch refuses it if the incarnation is another one, or if its token is lower than that
of the admission in force; otherwise it ends the AllReduces that the admission excludes, and answers
ADMITTED. Payloads::

    HELLO    rank u32, ranks u32, token of the switch 32 bytes, token of the job 32 bytes, name
    WELCOME  chunk bytes u32, window u32, slots u32, ranks u32, instance u64
    BEGIN    number of float32 values u64
    CHUNK    float32 values; SUM likewise
    REFUSED  reason, UTF-8
    STATS    token of the switch 32 bytes; FENCE likewise
    STATISTICS  a JSON object, UTF-8; FENCED: empty, its epoch is the fence
    GREET    token of the switch 32 bytes; the epoch of the header is the known incarnation
    STARTED  empty; the epoch of the header is the incarnation, the number is the token in force
    ADMISSION   for each job, by name: oldest epoch u64, bytes of the name u8, name; the epoch of
             the header is the incarnation, the number is the token; ADMITTED: empty, likewise

Tokens travel as SHA-256. The first registration of a job sets the job's token.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

MAGIC = 0x434E4950
VERSION = 1
NO_NUMBER = 2**64 - 1
MAX_NUMBER = 2**63 - 1  # also the highest epoch
MAX_NAME = 64  # bytes
MAX_REASON = 200  # bytes
MAX_REQUEST = 256  # bytes of a payload to the switch, except of a CHUNK
MAX_ADMITTED = 9 + MAX_NAME  # bytes of a job in an ADMISSION
TOKEN_BYTES = 32
FLOAT_BYTES = 4

_HEADER = struct.Struct("<IBBHIIQQ")
HEADER_BYTES = _HEADER.size
HELLO = struct.Struct(f"<II{TOKEN_BYTES}s{TOKEN_BYTES}s")
WELCOME = struct.Struct("<IIIIQ")
BEGIN = struct.Struct("<Q")
_FLOOR = struct.Struct("<QB")


class Kind(IntEnum):
    """Kinds of frames."""

    HELLO = 1
    WELCOME = 2
    BEGIN = 3
    CHUNK = 4
    SUM = 5
    REFUSED = 6
    CANCEL = 7
    STATS = 8
    STATISTICS = 9
    FENCE = 10
    FENCED = 11
    GREET = 12
    STARTED = 13
    ADMISSION = 14
    ADMITTED = 15


class Code(IntEnum):
    """Reasons of a refusal."""

    NO_SLOT = 1
    OLD_EPOCH = 2
    OLD_NUMBER = 3
    UNEQUAL = 4
    RANK_LOST = 5
    CANCELLED = 6
    BAD_TOKEN = 7
    NAME_IN_USE = 8
    FULL = 9
    BAD_REQUEST = 10
    SUPERSEDED = 11
    NOT_ADMITTED = 12
    OLD_ADMISSION = 13
    NOT_CONTROLLED = 14


class Header(NamedTuple):
    """Header of a frame."""

    kind: int
    code: int = 0
    size: int = 0
    chunk: int = 0
    number: int = NO_NUMBER
    epoch: int = 0


class ProtocolError(Exception):
    """A peer sent bytes that are not a frame, or a frame that is not allowed here."""


def pack(header: Header) -> bytes:
    """Return a header as bytes."""
    return _HEADER.pack(MAGIC, VERSION, *header)


def unpack(content: bytes | bytearray) -> Header:
    """Return the header in ``HEADER_BYTES`` bytes; raise ProtocolError if it is none."""
    magic, version, *fields = _HEADER.unpack(content)
    if magic != MAGIC:
        raise ProtocolError("not a frame of this protocol")
    if version != VERSION:
        raise ProtocolError(f"version {version} of the protocol; this is version {VERSION}")
    return Header(*fields)


def frame(header: Header, payload: bytes = b"") -> bytes:
    """Return a header with the size of its payload, and the payload."""
    return pack(header._replace(size=len(payload))) + payload


def token_digest(token: str) -> bytes:
    """Return the SHA-256 of a token; zeros for an empty one."""
    return hashlib.sha256(token.encode()).digest() if token else bytes(TOKEN_BYTES)


def chunk_count(values: int, chunk_bytes: int) -> int:
    """Return the number of chunks of a buffer of float32 values, at least 1."""
    return max(1, -(-values * FLOAT_BYTES // chunk_bytes))


def chunk_size(values: int, index: int, chunk_bytes: int) -> int:
    """Return the bytes of a chunk of a buffer of float32 values."""
    return min(chunk_bytes, values * FLOAT_BYTES - index * chunk_bytes)


def pack_floors(floors: Iterable[tuple[str, int]]) -> bytes:
    """Return the payload of an ADMISSION; raise ValueError if a job has an invalid name."""
    pairs = sorted((job.encode(), epoch) for job, epoch in floors)
    for name, _ in pairs:
        if not is_name(name):
            raise ValueError(f"job name {name.decode()!r} is invalid")
    return b"".join(_FLOOR.pack(epoch, len(name)) + name for name, epoch in pairs)


def unpack_floors(payload: bytes) -> tuple[tuple[str, int], ...]:
    """Return the jobs of an ADMISSION by name, each with its oldest accepted epoch.

    Raises
    ------
    ProtocolError
        The payload is cut off, or has an invalid name or epoch, or names that do not ascend.
    """
    floors: list[tuple[str, int]] = []
    place = 0
    while place < len(payload):
        if place + _FLOOR.size > len(payload):
            raise ProtocolError("ADMISSION is cut off")
        epoch, size = _FLOOR.unpack_from(payload, place)
        name = payload[place + _FLOOR.size : place + _FLOOR.size + size]
        place += _FLOOR.size + size
        if len(name) != size or not is_name(name) or epoch > MAX_NUMBER:
            raise ProtocolError("ADMISSION has an invalid name or epoch")
        if floors and name.decode() <= floors[-1][0]:
            raise ProtocolError("the names of ADMISSION do not ascend")
        floors.append((name.decode(), epoch))
    return tuple(floors)


def is_name(name: bytes) -> bool:
    """Return whether a job can have this name: 1 to 64 letters, digits and ``._:/-``."""
    return 0 < len(name) <= MAX_NAME and all(
        chr(byte).isascii() and (chr(byte).isalnum() or byte in b"._:/-") for byte in name
    )
