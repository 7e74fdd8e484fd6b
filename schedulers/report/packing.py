"""Encoding of arrays in a page: one gzipped block as base64, decoded by ``data.js``."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGN = 8  # bytes; a view of doubles must start at a multiple


def pack(about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return base64 of the gzipped header length (4 bytes), header (JSON) and arrays.

    The header is ``about`` with an additional key ``arrays``: type, offset after the header and
    length of each array. Equal input gives equal text.
    """
    entries: dict[str, tuple[str, int, int]] = {}
    blocks: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        block = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
        entries[name] = array.dtype.name, offset, len(array)
        blocks += [block, bytes(-len(block) % _ALIGN)]
        offset += len(block) + -len(block) % _ALIGN
    header = json.dumps({**about, "arrays": entries}, allow_nan=False).encode()
    header += b" " * (-(len(header) + 4) % _ALIGN)
    content = b"".join([len(header).to_bytes(4, "little"), header, *blocks])
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode()


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Return non-negative integers in the narrowest unsigned type that holds them."""
    largest = int(values.max(initial=0))
    return values.astype(
        next(t for t in (np.uint8, np.uint16, np.uint32) if largest <= np.iinfo(t).max)
    )


def delta_encode(values: NDArray[Any]) -> NDArray[Any]:
    """Return the differences of ascending numbers, starting from 0: they compress well."""
    return narrow(np.diff(values, prepend=0))
