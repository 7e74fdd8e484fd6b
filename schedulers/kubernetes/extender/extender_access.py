"""Authentication of the extender's callers, by client certificate or token."""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from presage.errors import UnauthenticatedError
from presage.serving.authentication.callers import Caller, Tokens

BIND = "bind"  # role that permits bind and preempt
ANONYMOUS = Caller("anonymous", frozenset())


class Access(Enum):
    """Access level that a path of the extender requires."""

    OPEN = auto()  # no credentials: for probes of a kubelet
    READ = auto()  # credentials, if authentication is enabled
    BIND = auto()  # credentials with the role ``bind``


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Authenticator of callers. Without either method, all are anonymous and read-only.

    Attributes
    ----------
    tokens : callable, optional
        Returns the accepted tokens of a file (``TokenFile``).
    client_certificates : bool
        Whether the TLS handshake verifies client certificates.
    """

    tokens: Callable[[], Tokens] | None = None
    client_certificates: bool = False

    @property
    def is_enabled(self) -> bool:
        """Whether callers are authenticated."""
        return self.tokens is not None or self.client_certificates

    def authenticate(self, authorization: str, connection: object) -> Caller:
        """Return the caller of a request, from its Authorization header and socket.

        Raises
        ------
        UnauthenticatedError
            The header has no accepted token.
        """
        if self.tokens is not None:
            return self.tokens().authenticate([("authorization", _bearer(authorization))])
        if self.client_certificates and isinstance(connection, ssl.SSLSocket):
            return Caller(_common_name(connection), frozenset({BIND}))
        return ANONYMOUS


def _bearer(authorization: str) -> str:
    """Return an Authorization header, with the password of Basic credentials as bearer token.

    kube-scheduler cannot send a Bearer header, but Go's HTTP client sends user and password of a
    URL (http://presage:TOKEN@host) as Basic credentials (net/http, Client.send).
    """
    scheme, _, content = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        pair = base64.b64decode(content.strip(), validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise UnauthenticatedError(
            "Authorization: Basic is not USER:TOKEN in base64; send that, or Bearer TOKEN"
        ) from None
    return f"Bearer {pair.partition(':')[2]}"


def _common_name(connection: ssl.SSLSocket) -> str:
    subject = (connection.getpeercert() or {}).get("subject", ())
    names = dict(pair for part in subject for pair in part)  # type: ignore[misc]
    return str(names.get("commonName", "certificate"))
