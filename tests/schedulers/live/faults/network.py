"""A network namespace for agents, on a wire to the controller that can be cut in each direction."""

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
_NOBODY = "02:00:00:00:00:99"


class Network:
    """Made by :func:`network`; of several at a time each has a number of its own."""

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
        """What runs a command in it."""
        return ("ip", "netns", "exec", self.namespace)

    def make(self) -> None:
        """Raises OSError or CalledProcessError where that is not allowed."""
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
        """Whatever there is of it."""
        with suppress(OSError, subprocess.CalledProcessError):
            _ip("netns", "del", self.namespace)

    def cut(self, *sides: str) -> None:
        """What these sides send goes to nobody, and nobody is told."""
        for side in sides:
            self._address(side, _NOBODY)

    def heal(self) -> None:
        """All arrives again."""
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
    """Remove the namespaces of test runs that were killed: their addresses would be taken."""
    with suppress(OSError, subprocess.CalledProcessError):
        for row in _ip("-j", "netns", "list") or ():
            made_by = re.fullmatch(r"presage(\d+)(-\d+)?", row["name"])
            if made_by and not Path("/proc", made_by[1]).exists():
                _ip("netns", "del", row["name"])


@contextmanager
def network() -> Iterator[Network | None]:
    """None where this machine lets us make none."""
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
