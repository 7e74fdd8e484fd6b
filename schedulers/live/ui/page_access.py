"""The secret that lets a browser see the pages: a token in a link, exchanged for a cookie.

Every account of a machine can connect to its loopback ports, and the pages show commands and logs.
"""

from __future__ import annotations

import hmac
import re
import secrets
from http import HTTPStatus

from flask import Request, Response

from presage.serving.authentication.authentication_failures import AuthenticationFailures
from presage.serving.http.open_connections import peer_key

_BYTES = 32  # as many as an API token: failures are logged, and need no delay
_MOST_HOST = 300  # characters; DNS allows 253


class PageAccess:
    """Token and cookie of one run of the server: both end with it."""

    def __init__(self) -> None:
        self._token = secrets.token_urlsafe(_BYTES)
        self._cookie = secrets.token_urlsafe(_BYTES)
        self._failures = AuthenticationFailures()

    def link(self, url: str) -> str:
        """Return the address that lets a browser in."""
        return f"{url}?token={self._token}"

    def check(self, request: Request) -> Response | None:
        """Return the response to a request that is not let in yet, else None."""
        name = _cookie_name(request)
        sent = request.args.get("token") if request.path == "/" else None
        if sent is not None and _is_same(sent, self._token):
            return self._let_in(name)
        cookie = request.cookies.get(name)
        if cookie is not None and _is_same(cookie, self._cookie):
            return None
        if sent or cookie:
            host = peer_key(request.remote_addr or "::")
            self._failures.record_failure(host, reason="unknown token or cookie")
        return Response(
            "this page is shown to browsers that were let in; open the address with ?token= that "
            "`presage cluster ui` printed when it started\n",
            HTTPStatus.FORBIDDEN,
            mimetype="text/plain",
        )

    def _let_in(self, name: str) -> Response:
        # Away from the address with the token, so that it stays in no bookmark or screenshot.
        response = Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "/"})
        response.set_cookie(name, self._cookie, httponly=True, samesite="Strict")
        return response


def _cookie_name(request: Request) -> str:
    """By the host and port that the browser asks: cookies are of a host with all its ports."""
    host = re.sub("[^A-Za-z0-9]+", "-", request.headers.get("Host", "")[:_MOST_HOST])
    return f"presage-cluster-{host}"


def _is_same(sent: str, secret: str) -> bool:
    return hmac.compare_digest(sent.encode(errors="replace"), secret.encode())
