"""Credentials of clients: tokens and certificates, and their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from presage.errors import ConfigError
from presage.serving.authentication.local_token import local_token_finder

if TYPE_CHECKING:
    import grpc

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a client and the certificate authority of the server; files are PEM.

    Attributes
    ----------
    token : str
        Token from ``presage token``; "" for none or for the local token of the user's own server.
    ca : Path, optional
        Certificate authority of the server; with it, or with ``tls``, the connection is encrypted.
    certificate, key : Path, optional
        Client certificate, for servers that require one.
    tls : bool
        Encrypt the connection and trust the certificate authorities of this machine.
    """

    token: str = ""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    tls: bool = False

    def __repr__(self) -> str:
        return f"Credentials(token={'***' if self.token else ''!r}, ca={self.ca!r})"

    @property
    def metadata(self) -> Metadata:
        """Metadata of every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def metadata_for(self, target: str) -> Callable[[], Metadata]:
        """Return a function that returns the metadata of a call to "host:port".

        Without a token and a certificate it uses the local token of this user's own server at the
        target, if there is one (:mod:`presage.serving.authentication.local_token`).
        """
        if self.token or self.certificate:
            fixed = self.metadata
            return lambda: fixed
        find = local_token_finder(target)

        def metadata() -> Metadata:
            token = find()
            return (("authorization", f"Bearer {token}"),) if token else ()

        return metadata

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Return the gRPC channel credentials; None for a channel without encryption."""
        if not (self.tls or self.ca or self.certificate):
            return None
        import grpc

        return grpc.ssl_channel_credentials(
            *(path.read_bytes() if path else None for path in (self.ca, self.key, self.certificate))
        )


def read_credentials(
    token_file: Path | None, ca: Path | None, cert: Path | None = None, key: Path | None = None
) -> Credentials:
    """Read the credentials for a controller or a service from files.

    Raises
    ------
    ConfigError
        A file cannot be read, the authority is no certificate, or only one of certificate and key
        is given.
    """
    if (cert is None) != (key is None):
        raise ConfigError("give both --cert and --key, or neither")
    for path in (token_file, ca, cert, key):
        if path is not None and not path.is_file():
            raise ConfigError(f"{path}: no such file; give a readable file")
    if ca is not None:
        _check_authority(ca)
    try:
        token = "" if token_file is None else token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{token_file}: the token cannot be read ({error})") from error
    return Credentials(token=token, ca=ca, certificate=cert, key=key)


def _check_authority(path: Path) -> None:
    """Raise ConfigError unless a file has a certificate; gRPC's error would not name it."""
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"{path}: contains no certificate; give that of the authority, in PEM"
        ) from error
