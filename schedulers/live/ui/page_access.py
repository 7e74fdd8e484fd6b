"""Authentication of browsers: a token in a link, exchanged for a cookie; and of their forms.

Every account of a machine can connect to its loopback ports, and the pages show commands and logs.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from http import HTTPStatus
from urllib.parse import urlsplit

from flask import Request, Response

from presage.serving.authentication.authentication_failures import AuthenticationFailures
from presage.serving.http.open_connections import peer_key

_BYTES = 32  # as many as an API token: failures are logged, and need no delay
_MAX_HOST = 300  # characters; DNS allows 253


class PageAccess:
    """Token, sessions and form tokens of one run of the server; all expire with it.

    The cookie of a session is a random id with its authentication code; the token of its forms is
    another code of that id.
    """

    def __init__(self) -> None:
        self._token = secrets.token_urlsafe(_BYTES)
        self._key = secrets.token_bytes(_BYTES)
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
        if cookie is not None and self._is_session(cookie):
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

    def csrf_token(self, request: Request) -> str:
        """Return the token that forms of an authenticated request's session contain."""
        cookie = request.cookies.get(_cookie_name(request), "")
        return self._code("form", cookie.partition(".")[0])

    def form_problem(self, request: Request) -> str:
        """Return why a form is rejected; "" if this page of this session sent it."""
        origin = request.headers.get("Origin", "")
        if not _is_origin(origin, request.headers.get("Host", "")):
            return "the form was not sent by this page: its Origin is another one, or missing"
        if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            return "the form was not sent by this page, but by another site"
        if not _is_same(request.form.get("csrf", ""), self.csrf_token(request)):
            return "the form has no valid token of this session; open the page again, and repeat"
        return ""

    def _set_cookie(self, name: str) -> Response:
        # Redirect, so that the token does not stay in bookmarks and screenshots.
        response = Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "/"})
        session = secrets.token_urlsafe(_BYTES)
        cookie = f"{session}.{self._code('session', session)}"
        response.set_cookie(name, cookie, httponly=True, samesite="Strict")
        return response

    def _is_session(self, cookie: str) -> bool:
        session, _, code = cookie.partition(".")
        return _is_same(code, self._code("session", session))

    def _code(self, purpose: str, session: str) -> str:
        content = f"{purpose} {session}".encode(errors="replace")
        return hmac.new(self._key, content, hashlib.sha256).hexdigest()


def _cookie_name(request: Request) -> str:
    """Return a name per host and port: browsers share cookies between the ports of a host."""
    host = re.sub("[^A-Za-z0-9]+", "-", request.headers.get("Host", "")[:_MAX_HOST])
    return f"presage-cluster-{host}"


def _is_origin(origin: str, host: str) -> bool:
    """Return whether an Origin is that of this page, as the browser addressed it."""
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    is_web = found.scheme in ("http", "https") and bool(host)
    return is_web and found.netloc.casefold() == host.casefold()


def _is_same(sent: str, secret: str) -> bool:
    return hmac.compare_digest(sent.encode(errors="replace"), secret.encode())
