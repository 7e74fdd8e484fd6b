"""Webhook that receives events, configured by environment variables."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from presage.errors import ConfigError
from presage.system.notifications.cloud_event import CONTENT_TYPE, CloudEvent

URL_VARIABLE = "PRESAGE_WEBHOOK"
SECRET_VARIABLE = "PRESAGE_WEBHOOK_SECRET_FILE"  # noqa: S105 - a name
SIGNATURE_HEADER = "X-Presage-Signature"
TIMEOUT_S = 3.0  # of connecting, and of each read
PAUSES_S = (0.5, 2.0, 8.0)  # before each repetition
_MAX_SECRET_BYTES = 4096
_RETRYABLE = frozenset({408, 425, 429})  # and 5xx: the receiver may accept it later


@dataclass(frozen=True, slots=True)
class Webhook:
    """Receiver of events.

    Attributes
    ----------
    url : str
        URL without user and password.
    origin : str
        ``scheme://host:port``, for messages: the path may contain a token.
    secret : bytes
        Key of the signature; empty for none.
    authorization : str
        Header made from the URL's user and password; "" for none.
    """

    url: str = field(repr=False)
    origin: str
    secret: bytes = field(default=b"", repr=False)
    authorization: str = field(default="", repr=False)

    def headers(self, body: bytes) -> dict[str, str]:
        """Return the headers of a request, with the signature of its body."""
        headers = {"Content-Type": CONTENT_TYPE, "User-Agent": "presage"}
        if self.secret:
            headers[SIGNATURE_HEADER] = sign(self.secret, body)
        if self.authorization:
            headers["Authorization"] = self.authorization
        return headers

    def deliver(self, event: CloudEvent, pauses_s: Sequence[float] = PAUSES_S) -> str:
        """Send an event, with repetitions; return why it was not delivered, "" if it was.

        Redirects are not followed. Other answers than 2xx, 408, 425, 429 and 5xx are final.
        """
        body = event.body()
        for pause_s in (*pauses_s, None):
            problem, is_final = self._post(body)
            if not problem or is_final or pause_s is None:
                break
            time.sleep(pause_s)
        return problem

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Return the problem of one request, "" for none, and whether repeating it is useless."""
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            self.url, data=body, headers=self.headers(body), method="POST"
        )
        try:
            with _OPENER.open(request, timeout=TIMEOUT_S):
                return "", True
        except urllib.error.HTTPError as error:
            with error:
                is_final = error.code < 500 and error.code not in _RETRYABLE
                return f"HTTP status {error.code}", is_final
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            return f"{type(cause).__name__}: {getattr(cause, 'strerror', None) or cause}", False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that treats a redirect as an error."""

    def redirect_request(self, *_: Any) -> None:
        """Return no request, so that the status becomes an error."""
        return


_OPENER = urllib.request.build_opener(_NoRedirect)


def sign(secret: bytes, body: bytes) -> str:
    """Return the signature of a body: ``sha256=`` and its HMAC-SHA256 in hexadecimal digits."""
    return f"sha256={hmac.new(secret, body, hashlib.sha256).hexdigest()}"


def configured_webhook(environment: Mapping[str, str] = os.environ) -> Webhook | None:
    """Return the webhook that the environment names; None without one.

    Raises
    ------
    ConfigError
        The URL is not valid, or the file of the secret cannot be read. The message does not
        contain the URL, which may contain a password.
    """
    text = environment.get(URL_VARIABLE, "")
    if not text:
        return None
    url = _split(text)
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    netloc = f"{host}:{url.port}" if url.port else f"{host}"
    authorization = ""
    if url.username or url.password:
        pair = f"{unquote(url.username or '')}:{unquote(url.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Webhook(
        url=urlunsplit((url.scheme, netloc, url.path or "/", url.query, "")),
        origin=f"{url.scheme}://{netloc}",
        secret=_read_secret(environment.get(SECRET_VARIABLE, "")),
        authorization=authorization,
    )


def _split(text: str) -> SplitResult:
    try:
        url = urlsplit(text)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(
            f"{URL_VARIABLE} is no http:// or https:// URL with a host; set it to one such as "
            "https://alerts.example.org/presage, or unset it"
        )
    return url


def _read_secret(name: str) -> bytes:
    if not name:
        return b""
    try:
        with Path(name).open("rb") as file:
            secret = file.read(_MAX_SECRET_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError(f"{SECRET_VARIABLE}: {name}: {error.strerror}") from error
    if not 0 < len(secret) <= _MAX_SECRET_BYTES:
        raise ConfigError(
            f"{SECRET_VARIABLE}: {name}: must contain 1 to {_MAX_SECRET_BYTES} bytes; create it "
            "with `openssl rand -hex 32`"
        )
    return secret
