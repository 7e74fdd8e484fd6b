"""Arrays inside a page: one gzipped block, as base64, that ``page.js`` takes apart again."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGN = 8  # bytes: a view of doubles must begin at a multiple


def packed(about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Base64 of: the header's length as 4 bytes, the header as JSON, the arrays.

    The header is ``about`` and under ``arrays`` each one's type, first byte behind the header and
    length. Equal input gives equal text.
    """
    places: dict[str, tuple[str, int, int]] = {}
    blocks: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        block = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
        places[name] = array.dtype.name, offset, len(array)
        blocks += [block, bytes(-len(block) % _ALIGN)]
        offset += len(block) + -len(block) % _ALIGN
    header = json.dumps({**about, "arrays": places}, allow_nan=False).encode()
    header += b" " * (-(len(header) + 4) % _ALIGN)
    content = b"".join([len(header).to_bytes(4, "little"), header, *blocks])
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode()


def whole(values: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers >= 0 in the narrowest type that holds them."""
    most = int(values.max(initial=0))
    return values.astype(
        next(t for t in (np.uint8, np.uint16, np.uint32) if most <= np.iinfo(t).max)
    )


def steps_between(values: NDArray[Any]) -> NDArray[Any]:
    """Differences of numbers that only rise, the first from 0: small, and so well compressed."""
    return whole(np.diff(values, prepend=0))
