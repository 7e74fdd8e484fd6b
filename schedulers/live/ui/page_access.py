"""Authentication of browsers: a token in a link, exchanged for a cookie.

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
_MAX_HOST = 300  # characters; DNS allows 253


class PageAccess:
    """Token and cookie of one run of the server; both expire with it."""

    def __init__(self) -> None:
        self._token = secrets.token_urlsafe(_BYTES)
        self._cookie = secrets.token_urlsafe(_BYTES)
        self._failures = AuthenticationFailures()

    def link(self, url: str) -> str:
        """Return the address with the access token."""
        return f"{url}?token={self._token}"

    def check(self, request: Request) -> Response | None:
        """Return None for an authenticated request, else the response to it."""
        name = _cookie_name(request)
        sent = request.args.get("token") if request.path == "/" else None
        if sent is not None and _is_same(sent, self._token):
            return self._set_cookie(name)
        cookie = request.cookies.get(name)
        if cookie is not None and _is_same(cookie, self._cookie):
            return None
        if sent or cookie:
            host = peer_key(request.remote_addr or "::")
            self._failures.record_failure(host, reason="unknown token or cookie")
        return Response(
            "this page requires authentication; open the address with ?token= that "
            "`presage cluster ui` printed when it started\n",
            HTTPStatus.FORBIDDEN,
            mimetype="text/plain",
        )

    def _set_cookie(self, name: str) -> Response:
        # Redirect, so that the token does not stay in bookmarks and screenshots.
        response = Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "/"})
        response.set_cookie(name, self._cookie, httponly=True, samesite="Strict")
        return response


def _cookie_name(request: Request) -> str:
    """Return a name per host and port: browsers share cookies between the ports of a host."""
    host = re.sub("[^A-Za-z0-9]+", "-", request.headers.get("Host", "")[:_MAX_HOST])
    return f"presage-cluster-{host}"


def _is_same(sent: str, secret: str) -> bool:
    return hmac.compare_digest(sent.encode(errors="replace"), secret.encode())
