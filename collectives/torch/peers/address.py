"""Address at which other ranks reach this machine, IPv4 or IPv6."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_GLOBAL_SCOPE = "00"
_ANY_PORT = 9  # to which nothing is sent


def own_address() -> str:
    """Return the address at which other ranks reach this machine.

    It belongs to the interface that ``GLOO_SOCKET_IFNAME`` names, or else to the one by which this
    machine reaches ``MASTER_ADDR``. Without both it is that of the host name, as for gloo, or the
    loopback address if the name has none.

    Raises
    ------
    OSError
        The interface does not exist or has no address.
    """
    if name := os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]:
        return _of_interface(name)
    for target in (os.environ.get("MASTER_ADDR", ""), socket.gethostname()):
        if target and (address := _towards(target)):
            return address
    return "127.0.0.1"


def _towards(target: str) -> str:
    """Return the address of this machine on the way to another one, or "" if there is no way."""
    with suppress(OSError):
        found = socket.getaddrinfo(target, _ANY_PORT, type=socket.SOCK_DGRAM)
        for family, kind, _, _, place in sorted(found, key=lambda one: one[0] != socket.AF_INET):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(place)
                return str(probe.getsockname()[0])
    return ""


def _of_interface(name: str) -> str:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return socket.inet_ntoa(fcntl.ioctl(probe, _GET_ADDRESS, request)[20:24])
        except OSError:
            if address := _ipv6_of_interface(name):
                return address
            raise


def _ipv6_of_interface(name: str) -> str:
    """Return the address of an interface without IPv4, or "" if it has none."""
    with suppress(OSError):
        for line in _IPV6_ADDRESSES.read_text().splitlines():
            digits, _, _, scope, _, interface = line.split()
            if interface == name and scope == _GLOBAL_SCOPE:
                return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    return ""
