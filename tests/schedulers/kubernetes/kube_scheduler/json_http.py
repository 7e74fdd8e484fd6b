"""JSON over HTTP, with one connection for each call."""

from __future__ import annotations

import base64
import json
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import unquote, urlsplit


class HttpError(Exception):
    """No response (``code`` 0), or an unexpected status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def call(
    method: str,
    url: str,
    body: Any = None,
    *,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
    expected: range = range(200, 300),
    content_type: str = "application/json",
    user_agent: str = "kube-scheduler",
) -> Any:
    parts = urlsplit(url)
    host, headers = parts.hostname or "", {"Content-Type": content_type, "User-Agent": user_agent}
    if tls is None:
        connection = HTTPConnection(host, parts.port or 80, timeout=timeout_s)
    else:
        connection = HTTPSConnection(host, parts.port or 443, timeout=timeout_s, context=tls)
    if parts.username is not None:  # as Go's HTTP client does it (net/http, Client.send)
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
        if response.status not in expected:
            raise HttpError(response.status, f"{method} {url}: {response.status} {text}")
        return json.loads(text)
    except (OSError, HTTPException, ValueError) as error:
        raise HttpError(0, f"{method} {url}: {error!r}") from error
    finally:
        connection.close()
