"""Emulated machines around one switch: network namespaces with links of a limited rate.

Each host is a namespace with one link to a bridge in the namespace of the hub, where the software
switch runs. ``tbf`` limits each direction of a link. Needs root, ``ip`` and ``tc``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from presage.errors import PresageError

_PREFIX = "presage-inc"
_SUBNET = "10.232.77"
_HUB = 254
MAX_HOSTS = 64
_MTU = "9000"  # as in networks of accelerators; small packets cost the processor more
_BURST_BYTES = 32 << 10
_QUEUE_BYTES = 1 << 20  # of each direction of a link


class NetworkUnavailableError(PresageError):
    """An emulated network is not possible on this machine; the message says what is missing."""


class StarNetwork:
    """Hosts around a hub. Use :func:`star_network`, which creates and removes it.

    Attributes
    ----------
    hub_address : str
        Address of the hub, at which hosts reach the switch.
    """

    def __init__(self, hosts: int, mbit_per_s: float) -> None:
        if not 1 <= hosts <= MAX_HOSTS:
            raise ValueError(f"hosts={hosts} is out of range; use 1 to {MAX_HOSTS}")
        if not mbit_per_s > 0:
            raise ValueError(f"mbit_per_s={mbit_per_s}, must be > 0")
        self.hosts, self.mbit_per_s = hosts, mbit_per_s
        self.hub_address = f"{_SUBNET}.{_HUB}"
        self._hub = f"{_PREFIX}-{os.getpid()}-hub"

    def address(self, host: int) -> str:
        """Return the address of a host."""
        return f"{_SUBNET}.{host + 1}"

    def hub_prefix(self) -> list[str]:
        """Return the words before a command that runs at the hub."""
        return ["ip", "netns", "exec", self._hub]

    def host_prefix(self, host: int) -> list[str]:
        """Return the words before a command that runs at a host."""
        return ["ip", "netns", "exec", self._name(host)]

    def cut(self, host: int) -> None:
        """Drop all packets of a host silently."""
        _run("ip", "-n", self._hub, "link", "set", f"port{host}", "nomaster")

    def heal(self, host: int) -> None:
        """Connect a host again."""
        _run("ip", "-n", self._hub, "link", "set", f"port{host}", "master", "bridge0")

    def create(self) -> None:
        """Create all namespaces and links; raises NetworkUnavailableError."""
        hub = ("ip", "-n", self._hub)
        _run("ip", "netns", "add", self._hub)
        _run(*hub, "link", "add", "bridge0", "mtu", _MTU, "type", "bridge")
        _run(*hub, "addr", "add", f"{self.hub_address}/24", "dev", "bridge0")
        _run(*hub, "link", "set", "bridge0", "up")
        _run(*hub, "link", "set", "lo", "up")
        _use_congestion_control(self._hub)
        for host in range(self.hosts):
            self._create_host(host)

    def remove(self) -> None:
        """Remove all namespaces; those that do not exist are skipped."""
        for name in [self._hub, *map(self._name, range(self.hosts))]:
            with suppress(NetworkUnavailableError):
                _run("ip", "netns", "del", name)

    def _create_host(self, host: int) -> None:
        name, port = self._name(host), f"port{host}"
        hub, inside = ("ip", "-n", self._hub), ("ip", "-n", name)
        peer = ("peer", "name", "eth0", "mtu", _MTU, "netns", name)
        _run("ip", "netns", "add", name)
        _run(*hub, "link", "add", port, "mtu", _MTU, "type", "veth", *peer)
        _run(*hub, "link", "set", port, "master", "bridge0", "up")
        _run(*inside, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")
        _run(*inside, "link", "set", "lo", "up")
        _use_congestion_control(name)
        for namespace, device in ((self._hub, port), (name, "eth0")):
            _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *self._shaping())

    def _shaping(self) -> list[str]:
        rate = f"{round(self.mbit_per_s * 1000)}kbit"
        return ["tbf", "rate", rate, "burst", str(_BURST_BYTES), "limit", str(_QUEUE_BYTES)]

    def _name(self, host: int) -> str:
        return f"{_PREFIX}-{os.getpid()}-{host}"


@contextmanager
def star_network(hosts: int, mbit_per_s: float) -> Iterator[StarNetwork]:
    """Create hosts around a hub, with links of a rate; remove them at the end of the block.

    Raises
    ------
    NetworkUnavailableError
        The machine does not permit it.
    """
    check_network()
    remove_abandoned()
    network = StarNetwork(hosts, mbit_per_s)
    try:
        network.create()
        yield network
    finally:
        network.remove()


def check_network() -> None:
    """Raise NetworkUnavailableError, which says what is missing, unless networks can be made."""
    missing = [
        f"the command {name!r} (iproute2)" for name in ("ip", "tc") if not shutil.which(name)
    ]
    if os.geteuid():
        missing.insert(0, "root (run it with sudo)")
    if missing:
        raise NetworkUnavailableError(f"an emulated network needs {' and '.join(missing)}")


def remove_abandoned() -> None:
    """Remove the namespaces of killed processes."""
    with suppress(NetworkUnavailableError):
        for line in _run("ip", "netns", "list").splitlines():
            name = line.split()[0]
            made_by = re.fullmatch(rf"{_PREFIX}-(\d+)-(hub|\d+)", name)
            if made_by and not Path("/proc", made_by[1]).exists():
                _run("ip", "netns", "del", name)


def _use_congestion_control(namespace: str) -> None:
    """Use cubic, if the kernel has it: bbr, some machines' default, holds links back at starts."""
    setting = "echo cubic > /proc/sys/net/ipv4/tcp_congestion_control"
    with suppress(NetworkUnavailableError):
        _run("ip", "netns", "exec", namespace, "sh", "-c", setting)


def _run(*words: str) -> str:
    try:
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=30)
    except subprocess.CalledProcessError as error:
        raise NetworkUnavailableError(f"{' '.join(words)}: {error.stderr.strip()}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkUnavailableError(f"{' '.join(words)}: {error}") from None
    return done.stdout
