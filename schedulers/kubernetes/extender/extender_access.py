"""Who calls the extender: by client certificate or token, or an anonymous caller."""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from presage.errors import UnauthenticatedError
from presage.serving.authentication.callers import Caller, Tokens

BIND = "bind"  # role of callers that may bind and preempt
ANONYMOUS = Caller("anonymous", frozenset())


class Access(Enum):
    """What a path of the extender asks of its caller."""

    OPEN = auto()  # nothing: a kubelet has no credentials
    READ = auto()  # credentials, where the server was given a way to check them
    BIND = auto()  # credentials with the role ``bind``


@dataclass(frozen=True, slots=True)
class Credentials:
    """How callers are checked. With neither, all are anonymous, and may only read.

    Attributes
    ----------
    tokens : callable, optional
        The tokens of a file that are accepted now (``TokenFile``).
    client_certificates : bool
        Whether the TLS handshake has verified a certificate of the client.
    """

    tokens: Callable[[], Tokens] | None = None
    client_certificates: bool = False

    @property
    def are_checked(self) -> bool:
        """Whether there is a way to know a caller."""
        return self.tokens is not None or self.client_certificates

    def caller(self, authorization: str, connection: object) -> Caller:
        """The caller of a request with that Authorization header, on that socket.

        Raises
        ------
        UnauthenticatedError
            The header holds no accepted token.
        """
        if self.tokens is not None:
            return self.tokens().authenticate([("authorization", _bearer(authorization))])
        if self.client_certificates and isinstance(connection, ssl.SSLSocket):
            return Caller(_common_name(connection), frozenset({BIND}))
        return ANONYMOUS


def _bearer(authorization: str) -> str:
    """Basic credentials as a bearer token: their password. Others as they are.

    kube-scheduler cannot send a Bearer header, but Go's HTTP client sends the user and password of
    a URL (http://presage:TOKEN@host) as Basic (net/http, Client.send).
    """
    scheme, _, content = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        pair = base64.b64decode(content.strip(), validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise UnauthenticatedError(
            "Authorization: Basic is not USER:TOKEN in base64; send it so, or Bearer TOKEN"
        ) from None
    return f"Bearer {pair.partition(':')[2]}"


def _common_name(connection: ssl.SSLSocket) -> str:
    subject = (connection.getpeercert() or {}).get("subject", ())
    names = dict(pair for part in subject for pair in part)  # type: ignore[misc]
    return str(names.get("commonName", "certificate"))
