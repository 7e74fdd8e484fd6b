"""Unix socket of the bridge: one request and one response for each connection."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from presage.errors import ServiceError
from presage.schedulers.slurm.bridge.submission import MAX_REQUEST_BYTES

SOCKET = "bridge.sock"  # in the state folder
CONNECTIONS = 32  # slurmctld asks for one job at a time
READ_TIMEOUT_S = 1.0


class BridgeServer:
    """Listener for requests of job_submit.lua, active inside ``with``.

    Only the user of this process (and root) can connect: run it as SlurmUser.

    Parameters
    ----------
    respond : callable
        Returns the response to a request; must return soon.

    Raises
    ------
    ServiceError
        Another bridge listens there, or the path cannot be used.
    """

    def __init__(self, path: Path, respond: Callable[[bytes], bytes]) -> None:
        self._path, self._respond = path, respond
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        self._listener = _listen(path)
        self._inode = path.lstat().st_ino
        self._thread = threading.Thread(target=self._accept, name="bridge", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                if self._listener.fileno() < 0:
                    return
                time.sleep(0.01)  # such as too many open files
                continue
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.settimeout(READ_TIMEOUT_S)
                request = _read(connection)
                if request is not None:
                    connection.sendall(self._respond(request))
        finally:
            self._slots.release()


def _read(connection: socket.socket) -> bytes | None:
    """Return a request up to its empty line; None if it is too large or cut off."""
    request = bytearray()
    until_s = time.monotonic() + READ_TIMEOUT_S
    while not request.endswith(b"\n\n"):
        part = connection.recv(65536)
        request += part
        if not part or len(request) > MAX_REQUEST_BYTES or time.monotonic() > until_s:
            return None
    return bytes(request)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            _remove_stale(path)
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(CONNECTIONS)
    except OSError as error:
        listener.close()
        raise ServiceError(
            f"the bridge cannot listen at {path} ({error.strerror or error}); give a --state "
            "folder with a short path that this user may write to"
        ) from error
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket of a bridge that was killed."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(READ_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise ServiceError(f"another bridge listens at {path}; stop it first")
