"""Connection of this process to a Ray cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TIMEOUT_S = 5.0


class RayConnectionError(ConnectionError):
    """No Ray cluster at an address; the message is the first line of Ray's."""


@contextmanager
def ray_connection(address: str) -> Iterator[Any]:
    """Yield the module ``ray``, connected to the cluster at ``address``.

    A process that is connected already stays so, also afterwards.

    Parameters
    ----------
    address : str
        HOST:PORT, or "auto" for the cluster of this machine.

    Raises
    ------
    RayConnectionError
        There is no cluster.
    ModuleNotFoundError
        Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    is_ours = not ray.is_initialized()
    if is_ours:
        try:
            _check_reachable(address)
            ray.init(address=address, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as error:
            raise RayConnectionError(str(error).strip().partition("\n")[0]) from error
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Check that the cluster's port is open: Ray itself would retry for minutes.

    Raises
    ------
    OSError
        The port does not accept a connection.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=_TIMEOUT_S).close()
