"""Handler of HTTP/1.1 requests with bodies: lengths, 100-continue, memory and rejected bodies."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus

from presage.serving.http.connection import ConnectionEndedError
from presage.serving.http.http_server import BoundedHandler
from presage.serving.http.memory_budget import MemoryBudget

SMALL_BYTES = 64 * 1024  # a rejected body up to this size is read, to keep the connection
_LINGER_S = 2.0

Header = tuple[str, str]


class HttpError(Exception):
    """Rejection of a request, with its status, message and additional headers."""

    def __init__(self, status: HTTPStatus, message: str, *headers: Header) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class ParsedTooLargeError(Exception):
    """The parsed form of a body needs more memory than all requests together may have."""


class BodyHandler(BoundedHandler):
    """Handler that reads bodies of a known length; the connection stays open between requests.

    Attributes
    ----------
    unread : int
        Bytes of the body that have not been read.
    """

    protocol_version = "HTTP/1.1"
    unread = 0

    def handle_expect_100(self) -> bool:
        """Postpone "100 Continue" until the body is accepted."""
        return True

    def body_length(self) -> int:
        """Return the number of bytes in the body, from the headers.

        Raises
        ------
        HttpError
            The length is missing (411) or is not one number (400).
        """
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True  # the start of the next request is unknown
            raise HttpError(
                HTTPStatus.LENGTH_REQUIRED,
                "Transfer-Encoding is not supported; send Content-Length",
            )
        lengths = self.headers.get_all("Content-Length", ["0"])
        length = lengths[0].strip(" \t")
        if len(lengths) > 1 or not re.fullmatch("[0-9]{1,18}", length):
            self.close_connection = True
            raise HttpError(HTTPStatus.BAD_REQUEST, "Content-Length is not one number of bytes")
        return int(length)

    def read_within(self, memory: MemoryBudget, *, is_parsed: bool) -> bytes:
        """Read the body, after reserving memory for it and, if ``is_parsed``, for its parsed form.

        Raises
        ------
        BudgetExhaustedError
            The memory did not become free in time.
        ParsedTooLargeError
            The parsed form does not fit into the whole budget.
        ConnectionEndedError
            The body did not arrive completely.
        """
        length = self.unread
        if length and self._expects_continue():
            self.send_response_only(HTTPStatus.CONTINUE)
            self.end_headers()
            self.wfile.flush()
        body = self._read(length, lambda count: memory.reserve(self.state, count))
        needed = parsed_size_bytes(body) if is_parsed else 0
        if length + needed > memory.max_bytes:
            raise ParsedTooLargeError
        memory.reserve(self.state, needed)
        return body

    def skip_small_body(self) -> None:
        """Read and drop a small body of a rejected request, so that the connection stays open."""
        if 0 < self.unread <= SMALL_BYTES and not self._expects_continue():
            self._read(self.unread)

    def send_content(
        self, status: int, content: bytes, content_type: str, headers: Sequence[Header] = ()
    ) -> None:
        """Send a response; close the connection after it if its body was not read."""
        self.close_connection |= self.unread > 0
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers:
            self.send_header(name, value)
        if self.close_connection or self.server.stopping:
            self.send_header("Connection", "close")  # this also sets close_connection
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()
        if self.unread:
            self._discard()

    def _expects_continue(self) -> bool:
        return self.headers.get("Expect", "").lower() == "100-continue"

    def _read(self, length: int, on_bytes: Callable[[int], object] = lambda count: None) -> bytes:
        self.state.read_body()
        self.state.on_body_bytes = on_bytes
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionEndedError(f"{self.state.peer}: connection closed within a body")
        self.unread = 0
        self.state.handle()
        return body

    def _discard(self) -> None:
        """Read for a moment: a client that is still sending would miss the response otherwise."""
        self.state.linger(_LINGER_S)
        with suppress(OSError):
            while self.rfile.read1(SMALL_BYTES):
                pass


def parsed_size_bytes(body: bytes) -> int:
    """Return an upper bound of the memory for parsing and answering a JSON body, in bytes.

    Measured with CPython 3.11, for bodies with one kind of value only: up to 24 bytes for each byte
    of `{"a":1},`, 30 for `[[]],`. Text with a wide character takes 4 bytes a character.
    """
    is_wide = not body.isascii() or b"\\u" in body
    text = (8 if is_wide else 2) * len(body)
    values = 70 * (body.count(b",") + body.count(b"[")) + 100 * body.count(b":")
    return text + 250 * body.count(b"{") + values
