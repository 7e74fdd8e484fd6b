"""Options of the sockets of the switch and its clients."""

from __future__ import annotations

import socket

_SEND_BYTES = 256 << 10  # what a refused AllReduce leaves in front of the next one is small
_BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """Return a listening, non-blocking socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    return listener


def configure(connection: socket.socket, lease_s: float) -> None:
    """Make a connection non-blocking; let the kernel close it when its peer's machine is silent.

    The kernel answers also for a process that computes or is stopped.
    """
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, round(lease_s / 2))
    options = {
        "TCP_KEEPIDLE": seconds, "TCP_KEEPINTVL": seconds, "TCP_KEEPCNT": 2,
        "TCP_USER_TIMEOUT": max(1000, round(lease_s * 1000)),
    }  # fmt: skip
    for name, value in options.items():
        if number := getattr(socket, name, None):  # not all systems have them
            connection.setsockopt(socket.IPPROTO_TCP, number, value)
