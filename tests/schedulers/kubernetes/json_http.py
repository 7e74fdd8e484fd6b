"""JSON over HTTP, a connection a call."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit


class HttpError(Exception):
    """No answer (``code`` 0), or one that is no success."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def call(
    method: str,
    url: str,
    body: Any = None,
    *,
    timeout_s: float,
    expected: range = range(200, 300),
    content_type: str = "application/json",
    user_agent: str = "kube-scheduler",
) -> Any:
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
    headers = {"Content-Type": content_type, "User-Agent": user_agent}
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status not in expected:
            raise HttpError(answer.status, f"{method} {url}: {answer.status} {text}")
        return json.loads(text)
    except (OSError, HTTPException, ValueError) as error:
        raise HttpError(0, f"{method} {url}: {error!r}") from error
    finally:
        connection.close()
