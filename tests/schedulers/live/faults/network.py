"""Network namespace for agents, with a link that can be cut in each direction."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CONTROLLER, AGENT = "10.231.77.1", "10.231.77.2"
_UNUSED_ADDRESS = "02:00:00:00:00:99"


class Network:
    """Namespace created by :func:`network`, with a number that is unique at a time."""

    def __init__(self, number: int = 77) -> None:
        suffix = f"{os.getpid()}" if number == 77 else f"{os.getpid()}-{number}"
        self.namespace = f"presage{suffix}"
        self._wire = f"pr{suffix}"
        self.controller_address = CONTROLLER.replace("77", str(number))
        self.agent_address = AGENT.replace("77", str(number))
        # By side: how to name its namespace, its device, and the other's address.
        self._sides: dict[str, tuple[tuple[str, ...], str, str]] = {
            "controller": ((), self._wire, self.agent_address),
            "agent": (("-n", self.namespace), "a0", self.controller_address),
        }

    @property
    def by(self) -> tuple[str, ...]:
        """Return the prefix of a command that runs in the namespace."""
        return ("ip", "netns", "exec", self.namespace)

    def make(self) -> None:
        """Create the namespace. Raises OSError or CalledProcessError if that is not permitted."""
        remove_abandoned()
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self._wire, "type", "veth", "peer", "a0", "netns", self.namespace)
        for side, address in (
            ("controller", self.controller_address),
            ("agent", self.agent_address),
        ):
            where, device, _ = self._sides[side]
            _ip(*where, "addr", "add", f"{address}/30", "dev", device)
            _ip(*where, "link", "set", device, "up")

    def remove(self) -> None:
        """Remove the namespace and its link."""
        with suppress(OSError, subprocess.CalledProcessError):
            _ip("netns", "del", self.namespace)

    def cut(self, *sides: str) -> None:
        """Drop packets that these sides send, silently."""
        for side in sides:
            self._address(side, _UNUSED_ADDRESS)

    def heal(self) -> None:
        """Restore the link."""
        for side, other in (("controller", "agent"), ("agent", "controller")):
            where, device, _ = self._sides[other]
            (link,) = _ip(*where, "-j", "link", "show", "dev", device)
            self._address(side, link["address"])

    def _address(self, side: str, of_other: str) -> None:
        where, device, address = self._sides[side]
        told = ("lladdr", of_other, "dev", device, "nud", "permanent")
        _ip(*where, "neigh", "replace", address, *told)


def _ip(*words: str) -> Any:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    return json.loads(done.stdout or "[]") if "-j" in words else None


def remove_abandoned() -> None:
    """Remove the namespaces of killed test runs, whose addresses are in use."""
    with suppress(OSError, subprocess.CalledProcessError):
        for row in _ip("-j", "netns", "list") or ():
            made_by = re.fullmatch(r"presage(\d+)(-\d+)?", row["name"])
            if made_by and not Path("/proc", made_by[1]).exists():
                _ip("netns", "del", row["name"])


@contextmanager
def network() -> Iterator[Network | None]:
    """Yield a namespace; None if the machine does not permit one."""
    made = Network()
    try:
        try:
            made.make()
        except (OSError, subprocess.CalledProcessError):
            yield None
            return
        yield made
    finally:
        made.remove()
