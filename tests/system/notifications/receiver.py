"""HTTP server that receives events, for tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """Received requests, and how the next ones are answered.

    Attributes
    ----------
    requests : list of (headers, body)
    statuses : list of int
        Answers of the next requests; 204 afterwards.
    before_answer : callable
        Called before each answer; may block.
    """

    url: str = ""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    before_answer: Callable[[], object] = lambda: None

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return the bodies as JSON, by their ids: repetitions count once."""
        return list(
            {one["id"]: one for one in (json.loads(body) for _, body in self.requests)}.values()
        )

    @property
    def types(self) -> list[str]:
        """Return the types of the events."""
        return [event["type"] for event in self.events]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Yield a server on a free port."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = found.statuses.pop(0) if found.statuses else 204
            found.requests.append((dict(self.headers), body))
            found.before_answer()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{found.url}redirected")
            self.end_headers()

        def do_GET(self) -> None:
            found.requests.append((dict(self.headers), b"{}"))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}/"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
