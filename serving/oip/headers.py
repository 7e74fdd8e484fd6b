"""Cache of request headers, the part before the raw contents that a client repeats per call."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from presage.serving.oip.messages import ModelInferRequest
from presage.serving.oip.served_model import ServedModel

MAX_HEADERS = 64
MAX_BYTES = 1024
# NaN as float32, which no valid request contains.
_OTHER = b"\xff"


@dataclass(frozen=True, slots=True)
class Header:
    """Request without its raw contents, which belong to one tensor.

    Attributes
    ----------
    content : bytes
        Serialized header.
    model : ServedModel
    tensor : str
        Name of the tensor.
    shape : tuple of int
        Shape of the tensor.
    """

    content: bytes
    model: ServedModel
    tensor: str
    shape: tuple[int, ...]


class Headers:
    """Cache of the headers of valid requests, so that equal headers are not parsed again.

    A request of the same length with a cached header is valid except possibly for its values.
    """

    def __init__(self) -> None:
        self._by_length: dict[int, Header] = {}

    def find(self, request: bytes) -> Header | None:
        """Return the cached header that a request begins with; None if there is none."""
        header = self._by_length.get(len(request))
        return header if header is not None and request.startswith(header.content) else None

    def store(
        self, request: bytes, raw: bytes, model: ServedModel, tensor: str, shape: tuple[int, ...]
    ) -> None:
        """Store the header of a valid request if only ``raw`` follows it."""
        content = request[: -len(raw)]
        if len(content) > MAX_BYTES or not _ends_where_contents_begin(content, len(raw)):
            return
        if len(self._by_length) >= MAX_HEADERS:
            self._by_length.clear()
        self._by_length[len(request)] = Header(content, model, tensor, shape)


def _ends_where_contents_begin(content: bytes, raw_bytes: int) -> bool:
    """Return whether the raw contents follow directly.

    Protobuf fields may have any order, and unknown fields may follow the contents.
    """
    other = _OTHER * raw_bytes
    try:
        found = ModelInferRequest.FromString(content + other)
    except DecodeError:
        return False
    return bool(found.raw_input_contents[:] == [other])
