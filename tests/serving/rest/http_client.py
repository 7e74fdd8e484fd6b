"""Client of the HTTP API, by http.client."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf import json_format

from tests.serving.support.processes import own_metadata

JSON = {"Content-Type": "application/json"}


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """Parsed body."""
        return json.loads(self.body)

    def message(self, kind: Any) -> Any:
        """Body as a protobuf message."""
        assert self.status == 200, self.body
        return json_format.Parse(self.body, kind())


def connect(server: Any, tls: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
    """Return a connection to the HTTP port of a server."""
    if tls is None:
        return http.client.HTTPConnection(server.host, server.http_port, timeout=30)
    return http.client.HTTPSConnection("127.0.0.1", server.http_port, timeout=30, context=tls)


def send(
    connection: http.client.HTTPConnection,
    verb: str,
    path: str,
    body: bytes | str | None = None,
    headers: Mapping[str, str] = JSON,
) -> Answer:
    """Send a request on an open connection and return the answer."""
    connection.request(verb, path, body, dict(headers))
    response = connection.getresponse()
    return Answer(response.status, response.headers, response.read())


def ask(server: Any, verb: str, path: str, body: Any = None, **options: Any) -> Answer:
    """Send a request on a connection of its own; a message is sent as JSON."""
    if hasattr(body, "DESCRIPTOR"):
        body = json_format.MessageToJson(body)
    connection = connect(server, options.pop("tls", None))
    try:
        return send(connection, verb, path, body, **options)
    finally:
        connection.close()


def of_owner(server: Any) -> dict[str, str]:
    """Return the headers of the user that started a server."""
    return JSON | dict(own_metadata(server))


def bearer(token: str) -> dict[str, str]:
    """Return headers with a token."""
    return JSON | {"Authorization": f"Bearer {token}"}
