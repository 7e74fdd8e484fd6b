"""Token of a server that was started without tokens, for clients of the same user on this machine.

Every user of the machine can reach a server that listens on loopback. Unless the server has tokens
or client certificates, other users have read access only. The user that started the server is
authenticated by a token file that only this user can read. The server creates the file when it
starts and removes it when it stops.
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
from presage.system.files.atomic_file import replace_text

ENVIRONMENT_VARIABLE = "PRESAGE_LOCAL_TOKEN"  # shared by the worker processes
_FOLDER = "presage/tokens"  # below the user's state folder
_MAX_BYTES = 256
CHECK_S = 1.0  # minimum interval between two reads of the file by a client
# TCP sockets of this machine; the eighth column is the user id of the owner.
SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"  # state of a listening socket


def account() -> str:
    """Return the account name of this process; the user id if it has no name."""
    with suppress(KeyError):
        return pwd.getpwuid(os.geteuid()).pw_name
    return str(os.geteuid())


def local_token_path(port: int) -> Path:
    """Return the token file of this user's server at a loopback port."""
    configured = os.environ.get("XDG_STATE_HOME", "")
    state = Path(configured) if configured.startswith("/") else Path.home() / ".local/state"
    return state / _FOLDER / str(port)


class LocalToken:
    """Token of a server at a port, for the user that runs it.

    Parameters
    ----------
    roles : sequence of str
        Roles of that user.
    token : str, optional
        Token of another worker process of the same server; a new one by default.
    """

    def __init__(self, port: int, roles: Sequence[str], token: str | None = None) -> None:
        self._path = local_token_path(port)
        self._token = token or secrets.token_urlsafe(32)
        name = account()
        digest = hashlib.sha256(self._token.encode()).hexdigest()
        self._tokens = Tokens({digest: Caller(name, frozenset(roles), run_as=name)})

    def __call__(self) -> Tokens:
        """Return the only valid token."""
        return self._tokens

    @staticmethod
    def new() -> str:
        """Return a token for several worker processes of one server."""
        return secrets.token_urlsafe(32)

    @property
    def token(self) -> str:
        """The token in clear text."""
        return self._token

    def write(self) -> None:
        """Write the token file for clients of this user; on failure, log that access is read-only.

        Without the file all callers have read access only.
        """
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_text(self._path, self._token)
        except OSError as error:
            log(logging.WARNING, "no local token; callers can only read", error=str(error))

    def remove(self) -> None:
        """Remove the file unless it belongs to another server of this user by now."""
        with suppress(OSError):
            if _read(self._path) == self._token:
                self._path.unlink()


def local_token(port: int) -> str:
    """Return the token of this user's server at a loopback port; "" if there is none."""
    try:
        return _read(local_token_path(port))
    except (OSError, RuntimeError):  # no such file; no home folder
        return ""


def local_token_finder(target: str) -> Callable[[], str]:
    """Return a function that finds the local token for a client's target, "host:port".

    The function reads the file again after a second, because a restarted server creates a new
    token. It returns "" if a process of another user listens at the target, for example on [::1]
    while the server listens on 127.0.0.1.
    """
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    if not (port.isdecimal() and _is_loopback(host)):
        return str
    read_s, token = -CHECK_S, ""

    def find() -> str:
        nonlocal read_s, token
        now_s = time.monotonic()
        if now_s - read_s >= CHECK_S:
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
    """Return whether only this user or root listens at a loopback port.

    True if the kernel does not report the owner.
    """
    names = ("127.0.0.1", "::1") if host == "localhost" else (host,)
    listened = {f"{address}:{port:04X}" for name in names for address in _table_addresses(name)}
    for table in SOCKET_TABLES:
        with suppress(OSError), table.open() as rows:
            next(rows, "")
            for row in rows:
                _, address, _, state, *rest = row.split()
                if state != _LISTENS:  # listening sockets come first
                    break
                if address in listened and int(rest[3]) not in (0, os.geteuid()):
                    return False
    return True


def _table_addresses(name: str) -> Sequence[str]:
    """Return an address and its wildcard addresses in the notation of the kernel's tables."""
    found = ipaddress.ip_address(name)
    mapped = b"\0" * 10 + b"\xff" * 2 if found.version == 4 else b""
    packed = [found.packed, bytes(len(found.packed)), bytes(16), mapped + found.packed]
    return ["".join(f"{n:08X}" for (n,) in struct.iter_unpack("=I", row)) for row in packed]


def _read(path: Path) -> str:
    """Return the text of a small regular file that only this user can read; "" for other files."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(opened) as file:
        found = os.fstat(opened)
        is_ours = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
        is_token = stat.S_ISREG(found.st_mode) and found.st_size <= _MAX_BYTES
        return file.read() if is_ours and is_token else ""
