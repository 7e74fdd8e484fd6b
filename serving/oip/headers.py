"""What requests say before their raw contents: a client says the same, call after call."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from presage.serving.oip.messages import ModelInferRequest
from presage.serving.oip.served_model import ServedModel

_MOST = 64
_MOST_BYTES = 1024
# As float32 it is NaN, which no request has that was found right.
_OTHER = b"\xff"


@dataclass(frozen=True, slots=True)
class Header:
    """All of a request but its raw contents, which are those of one tensor.

    Attributes
    ----------
    tensor : str
    shape : tuple of int
    """

    content: bytes
    model: ServedModel
    tensor: str
    shape: tuple[int, ...]


class Headers:
    """Headers of requests that were found right, so that they need not be read again.

    Whatever contents follow a header make a request of the same length that is as right, but for
    the values.
    """

    def __init__(self) -> None:
        self._by_length: dict[int, Header] = {}

    def find(self, request: bytes) -> Header | None:
        """What this request begins with, where that was kept."""
        header = self._by_length.get(len(request))
        return header if header is not None and request.startswith(header.content) else None

    def keep(
        self, request: bytes, raw: bytes, model: ServedModel, tensor: str, shape: tuple[int, ...]
    ) -> None:
        """Keep the header of a request that was found right, if all that follows it is ``raw``."""
        content = request[: -len(raw)]
        if len(content) > _MOST_BYTES or not _ends_where_contents_begin(content, len(raw)):
            return
        if len(self._by_length) >= _MOST:
            self._by_length.clear()
        self._by_length[len(request)] = Header(content, model, tensor, shape)


def _ends_where_contents_begin(content: bytes, raw_bytes: int) -> bool:
    """Fields may come in any order, and after the contents one that is not known here."""
    other = _OTHER * raw_bytes
    try:
        found = ModelInferRequest.FromString(content + other)
    except DecodeError:
        return False
    return bool(found.raw_input_contents[:] == [other])
