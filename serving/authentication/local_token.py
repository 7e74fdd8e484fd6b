"""Token of a server that was started without tokens, for clients of the same user on this machine.

A server that listens on loopback can be reached by every user of the machine. Unless it is given
tokens or client certificates, other users only read. The user that started it is authenticated by a
file that only this user can read. The file is made when the server starts and removed when it
stops.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import os
import pwd
import secrets
import stat
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from presage.serving.authentication.callers import Caller, Tokens
from presage.serving.server.log import log

VARIABLE = "PRESAGE_LOCAL_TOKEN"  # by which the worker processes of a server have one token
_FOLDER = "presage/tokens"  # below the user's state folder
_MOST_BYTES = 256
_CHECK_S = 1.0  # between two reads of the file by a client
# TCP sockets of this machine: Linux has the user of each in its eighth column.
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"  # the state of a socket that listens


def account() -> str:
    """Return the name of this process's account; its number where it has no name."""
    with suppress(KeyError):
        return pwd.getpwuid(os.geteuid()).pw_name
    return str(os.geteuid())


def local_token_path(port: int) -> Path:
    """Return the file of the token of this user's server at a port of loopback."""
    given = os.environ.get("XDG_STATE_HOME", "")
    state = Path(given) if given.startswith("/") else Path.home() / ".local/state"
    return state / _FOLDER / str(port)


class LocalToken:
    """Token of a server at a port, for its own user.

    Parameters
    ----------
    roles : sequence of str
        Roles of the user that started the server.
    token : str, optional
        That of another process of the same server; a new one by default.
    """

    def __init__(self, port: int, roles: Sequence[str], token: str | None = None) -> None:
        self._path = local_token_path(port)
        self._token = token or secrets.token_urlsafe(32)
        name = account()
        digest = hashlib.sha256(self._token.encode()).hexdigest()
        self._tokens = Tokens({digest: Caller(name, frozenset(roles), run_as=name)})

    def __call__(self) -> Tokens:
        """Return the only token."""
        return self._tokens

    @staticmethod
    def new() -> str:
        """Return a token for several processes of one server."""
        return secrets.token_urlsafe(32)

    @property
    def token(self) -> str:
        """The token itself, for a token file that is to admit it."""
        return self._token

    def write(self) -> None:
        """Let clients of this user find it; if it cannot be written, all callers only read."""
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.unlink(missing_ok=True)
            created = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(created, "w") as file:
                file.write(self._token)
            partial.replace(self._path)
        except OSError as error:
            log(logging.WARNING, "no local token; callers can only read", error=str(error))

    def remove(self) -> None:
        """Remove the file, unless another server of this user has the port by now."""
        with suppress(OSError):
            if _read(self._path) == self._token:
                self._path.unlink()


def local_token(port: int) -> str:
    """Return the token of this user's server at a port of loopback; "" if there is none."""
    try:
        return _read(local_token_path(port))
    except (OSError, RuntimeError):  # no such file; no home folder
        return ""


def local_token_finder(target: str) -> Callable[[], str]:
    """Return what finds the local token of a client's target, "host:port", at each call.

    The file is read again after a second: a server that is restarted makes a new token. No token is
    found where another user listens there, as on [::1] where the server is on 127.0.0.1.
    """
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    if not (port.isdecimal() and _is_loopback(host)):
        return str
    read_s, token = -_CHECK_S, ""

    def find() -> str:
        nonlocal read_s, token
        now_s = time.monotonic()
        if now_s - read_s >= _CHECK_S:
            read_s, token = now_s, local_token(int(port))
            if token and not _is_ours(host, int(port)):
                token = ""
        return token

    return find


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_ours(host: str, port: int) -> bool:
    """Return whether only this user or root listens at a port of loopback.

    True where the kernel does not say who listens.
    """
    names = ("127.0.0.1", "::1") if host == "localhost" else (host,)
    places = {f"{address}:{port:04X}" for name in names for address in _table_addresses(name)}
    for table in _TABLES:
        with suppress(OSError), table.open() as rows:
            next(rows, "")
            for row in rows:
                _, place, _, state, *rest = row.split()
                if state != _LISTENS:  # those that listen come first
                    break
                if place in places and int(rest[3]) not in (0, os.geteuid()):
                    return False
    return True


def _table_addresses(name: str) -> Sequence[str]:
    """Return an address as the kernel's tables have it, and the addresses that stand for all."""
    found = ipaddress.ip_address(name)
    mapped = b"\0" * 10 + b"\xff" * 2 if found.version == 4 else b""
    alike = [found.packed, bytes(len(found.packed)), bytes(16), mapped + found.packed]
    return ["".join(f"{n:08X}" for (n,) in struct.iter_unpack("=I", one)) for one in alike]


def _read(path: Path) -> str:
    """Return a file's text, if it is a small regular file of this user that no other can read."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(opened) as file:
        found = os.fstat(opened)
        is_ours = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
        is_token = stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_BYTES
        return file.read() if is_ours and is_token else ""
