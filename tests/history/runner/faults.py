"""Faults that the nemesis injects: each is begun, lasts for a while, and is taken back.

A fault has a kind, what it is done to, and a slot: at most one fault has a slot at a time, so that
what one takes back no other still needs. Faults of different slots overlap freely.
"""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.history.runner.clients import Process
from tests.history.runner.link import DOWN, UP, Link
from tests.history.runner.rig import CONTROLLER, Rig
from tests.schedulers.live.cluster import PRESAGE

HOUR_S = 3600
REFUSED_WITHIN_S = 60.0  # that a second controller has to see that it is one
_JUMPS_H = (-100, -20, -1, 0, 1, 5, 20, 100)
_NO_SLOT = ""

Undo = Callable[[], Any]  # False: not yet, try again


class Fault(NamedTuple):
    """A fault that was begun.

    Attributes
    ----------
    lasts_s : float
        After which it is to be taken back.
    undo : callable or None
        Takes it back; None where there is nothing to take back.
    said : object
        For the history: what was done to what.
    """

    lasts_s: float
    undo: Undo | None
    said: Any


class Spans(NamedTuple):
    """How long faults last, in seconds: draws from one of three ranges."""

    lease_s: float
    lost_s: float  # from a node's last word to when the controller gives it up
    may_be_lost: bool

    def of(self, draw: random.Random) -> float:
        """Mostly short, one in five beyond the lease, one in six until the node is given up."""
        chance = draw.random()
        if self.may_be_lost and chance < 0.17:
            return self.lost_s + draw.uniform(1.0, 4.0)
        if chance < 0.37:
            return self.lease_s * draw.uniform(1.1, 1.8)
        return draw.uniform(0.1, 0.5 * self.lease_s)


class Faults:
    """All kinds of faults on a rig; ``KINDS`` says how often each is drawn.

    A method is a kind. It gets the slots that are taken, and returns the slot and how to begin the
    fault, or None where it is not possible now.
    """

    KINDS: Mapping[str, int] = {
        "kill_controller": 3, "stop_controller": 2, "kill_agent": 6, "stop_agent": 4,
        "crash_node": 3, "kill_shim": 6, "stop_shim": 5, "strand_shim": 4, "kill_job": 6,
        "overflow_job": 4, "cut_link": 6, "hold_link": 3, "reset_link": 4, "slow_link": 3,
        "cut_client": 4, "jump_clock": 5, "fill_journal": 2, "fill_node": 3, "second_controller": 1,
        "rival_on_port": 1, "rival_on_copy": 1, "evict": 6,
    }  # fmt: skip

    def __init__(self, rig: Rig, draw: random.Random, spans: Spans, operator: Process) -> None:
        self.rig, self.draw, self.spans, self.operator = rig, draw, spans, operator
        self.client_links: list[Link] = []
        self.taken: set[str] = set()

    def begin(self, kind: str) -> tuple[str, Fault] | None:
        """Begin a fault of a kind, and take its slot; None where that is not possible now."""
        slot, fault = getattr(self, kind)()
        if fault is None or (slot and slot in self.taken):
            return None
        made = fault()
        if made is None:
            return None
        if made.undo is not None:
            self.taken.add(slot)
        return slot, made

    # Processes ------------------------------------------------------------------------------

    def kill_controller(self) -> Any:
        """SIGKILL; it is started again after a while."""
        return "controller", lambda: self._kill(CONTROLLER, 2.0 * self.spans.lease_s)

    def stop_controller(self) -> Any:
        """SIGSTOP, then SIGCONT."""
        return "controller", lambda: self._stop(CONTROLLER, 2.0 * self.spans.lease_s)

    def kill_agent(self) -> Any:
        """SIGKILL; it is started again after a while, or after its node was given up."""
        node = self.draw.choice(self.rig.nodes)
        return f"agent {node}", lambda: self._kill(node, 1e9)

    def stop_agent(self) -> Any:
        """SIGSTOP, then SIGCONT."""
        node = self.draw.choice(self.rig.nodes)
        return f"agent {node}", lambda: self._stop(node, 1e9)

    def crash_node(self) -> Any:
        """All processes of a node at once, as when its power fails; disk and memory stay."""
        node = self.draw.choice(self.rig.nodes)

        def begin() -> Fault | None:
            fault = self._kill(node, 1e9)
            gone = [*self.rig.shims(node), *self.rig.job_processes(node)]
            for pid in gone:
                self.rig.cluster.signal(pid, signal.SIGKILL)
            return fault and fault._replace(said=[node, len(gone)])

        return f"agent {node}", begin

    def kill_shim(self) -> Any:
        """SIGKILL of the parent of a job, which dies with it."""
        return self._of_shim(
            lambda node, pid: Fault(2.0, lambda: None, [node, pid]), signal.SIGKILL
        )

    def stop_shim(self) -> Any:
        """SIGSTOP of the parent of a job, which runs on; then SIGCONT."""

        def fault(node: str, pid: int) -> Fault:
            lasts_s = self.spans.of(self.draw)
            return Fault(
                lasts_s, lambda: self.rig.cluster.signal(pid, signal.SIGCONT), [node, pid, lasts_s]
            )

        return self._of_shim(fault, signal.SIGSTOP)

    def strand_shim(self) -> Any:
        """A shim is stopped on a node that is cut off until it is given up: its agent is left."""
        node = self.draw.choice(self.rig.nodes)
        link, slot = self.rig.links[node], f"link {node}"

        def begin() -> Fault | None:
            shims = self.rig.shims(node)
            if not shims or slot in self.taken or not self.spans.may_be_lost:
                return None
            self.taken.add(slot)
            pid = self.draw.choice(shims)
            self.rig.cluster.signal(pid, signal.SIGSTOP)
            link.held |= {UP, DOWN}

            def undo() -> None:
                self.rig.cluster.signal(pid, signal.SIGCONT)
                link.held.clear()
                self.taken.discard(slot)

            return Fault(self.spans.lost_s + self.draw.uniform(1.0, 4.0), undo, [node, pid])

        return f"agent {node}", begin

    def kill_job(self) -> Any:
        """SIGKILL of a process of a job."""
        return _NO_SLOT, lambda: self._signal_job(signal.SIGKILL)

    def overflow_job(self) -> Any:
        """A job runs out of memory."""
        return _NO_SLOT, lambda: self._signal_job(signal.SIGUSR2)

    # Networks -------------------------------------------------------------------------------

    def cut_link(self) -> Any:
        """Drop the packets of a node, of the controller to it, or both, silently."""
        if not self.rig.wires:
            return _NO_SLOT, None
        node = self.draw.choice(sorted(self.rig.wires))
        sides = self.draw.choice([("agent",), ("controller",), ("agent", "controller")])
        wire = self.rig.wires[node]

        def begin() -> Fault:
            wire.cut(*sides)
            lasts_s = self.spans.of(self.draw)
            return Fault(lasts_s, wire.heal, [node, *sides, lasts_s])

        return f"link {node}", begin

    def hold_link(self) -> Any:
        """What a node sends, or is sent, is kept for a while; then all of it arrives."""
        node = self.draw.choice(self.rig.nodes)
        return f"link {node}", lambda: self._hold(self.rig.links[node], node)

    def reset_link(self) -> Any:
        """A node's connections break."""
        node = self.draw.choice(self.rig.nodes)
        return _NO_SLOT, lambda: self._reset(self.rig.links[node], node)

    def slow_link(self) -> Any:
        """Each piece of what passes is late."""
        node = self.draw.choice(self.rig.nodes)
        link, delay_s = self.rig.links[node], self.draw.uniform(0.1, 0.6)

        def begin() -> Fault:
            link.delay_s = delay_s
            return Fault(self.draw.uniform(1.0, 6.0), lambda: setattr(link, "delay_s", 0.0), [node])

        return f"pace {node}", begin

    def cut_client(self) -> Any:
        """A client's connection is held or broken."""
        number = self.draw.randrange(len(self.client_links))
        link = self.client_links[number]
        if self.draw.random() < 0.5:
            return _NO_SLOT, lambda: self._reset(link, f"c{number}")
        return f"client {number}", lambda: self._hold(link, f"c{number}")

    # Clocks and disks -----------------------------------------------------------------------

    def jump_clock(self) -> Any:
        """The wall clock of the controller, or of a node with all that runs on it, jumps."""
        if not self.rig.clocks:
            return _NO_SLOT, None
        name, hours = self.draw.choice(sorted(self.rig.clocks)), self.draw.choice(_JUMPS_H)

        def begin() -> Fault:
            self.rig.clocks[name].shift(hours * HOUR_S)
            return Fault(0.0, None, [name, hours])

        return _NO_SLOT, begin

    def fill_journal(self) -> Any:
        """No room under the journal."""
        return f"disk {CONTROLLER}", self._filling(CONTROLLER, 0.7 * self.spans.lease_s)

    def fill_node(self) -> Any:
        """No room under a node's state."""
        node = self.draw.choice(self.rig.nodes)
        return f"disk {node}", self._filling(node, 2.0 * self.spans.lease_s)

    # Two controllers, and second attempts ---------------------------------------------------

    def second_controller(self) -> Any:
        """Another controller on the same journal has to be refused, also while the first stands."""
        journal = self.rig.cluster.journal
        return "controllers", lambda: self._refused(journal, 0)

    def rival_on_port(self) -> Any:
        """A controller on a copy of the journal, at the address of the first, has to be refused."""
        return "controllers", lambda: self._refused(self._copy(), self.rig.cluster.port)

    def rival_on_copy(self) -> Any:
        """Run a second controller on a copy of the journal; no node connects to it."""

        def begin() -> Fault | None:
            copy = self._copy()
            if copy is None:
                return None
            words = [*PRESAGE, "controller", "--journal", copy, "--port", 0]
            self.rig.cluster.environment = {}
            self.rig.cluster.start("rival", [*words, "--lease-s", self.spans.lease_s])

            def undo() -> None:
                self.rig.kill("rival")
                shutil.rmtree(Path(copy).parent, ignore_errors=True)

            return Fault(self.draw.uniform(2.0, 6.0), undo, [copy])

        return "controllers", begin

    def evict(self) -> Any:
        """A node is drained, and what runs there goes on elsewhere."""
        node = self.draw.choice(self.rig.nodes)

        def begin() -> Fault:
            told = self.operator.drain(node, evict=True)

            def undo() -> bool:
                done = self.operator.drain(node, undo=True)
                if not done:
                    time.sleep(0.2)  # it is asked again until the controller answers
                return done

            return Fault(self.draw.uniform(0.5, 2.0), undo, [node, told])

        return f"drain {node}", begin

    # ----------------------------------------------------------------------------------------

    def _kill(self, name: str, most_s: float) -> Fault | None:
        if self.rig.pid(name) is None:
            return None
        self.rig.kill(name)
        lasts_s = min(most_s, self.spans.of(self.draw))
        return Fault(lasts_s, lambda: self.rig.start(name), [name, lasts_s])

    def _stop(self, name: str, most_s: float) -> Fault | None:
        pid = self.rig.pid(name)
        if pid is None:
            return None
        self.rig.cluster.signal(pid, signal.SIGSTOP)
        lasts_s = min(most_s, self.spans.of(self.draw))

        def undo() -> None:
            if self.rig.pid(name) == pid:
                self.rig.cluster.signal(pid, signal.SIGCONT)

        return Fault(lasts_s, undo, [name, lasts_s])

    def _of_shim(self, fault: Callable[[str, int], Fault], number: int) -> Any:
        node = self.draw.choice(self.rig.nodes)

        def begin() -> Fault | None:
            shims = self.rig.shims(node)
            if not shims:
                return None
            pid = self.draw.choice(shims)
            self.rig.cluster.signal(pid, number)
            return fault(node, pid)

        return f"agent {node}", begin

    def _signal_job(self, number: int) -> Fault | None:
        found = self.rig.job_processes()
        if not found:
            return None
        pid = self.draw.choice(found)
        self.rig.cluster.signal(pid, number)
        return Fault(0.0, None, [pid])

    def _hold(self, link: Link, name: str) -> Fault:
        held = self.draw.choice([{UP}, {DOWN}, {UP, DOWN}])
        link.held |= held
        lasts_s = self.spans.of(self.draw)
        return Fault(lasts_s, link.held.clear, [name, *sorted(held), lasts_s])

    def _reset(self, link: Link, name: str) -> Fault:
        self.rig.reset(link)
        return Fault(0.0, None, [name])

    def _filling(self, name: str, most_s: float) -> Callable[[], Fault] | None:
        folder = self.rig.disks.get(name)
        if folder is None:
            return None

        def begin() -> Fault:
            lasts_s = min(most_s, max(1.0, self.spans.of(self.draw)))
            return Fault(lasts_s, fill(folder), [name, lasts_s])

        return begin

    def _copy(self) -> str | None:
        """A copy of the journal as it is now, with its key."""
        target = self.rig.folder / f"copy-{time.monotonic_ns()}" / "controller.db"
        target.parent.mkdir()
        try:
            with (
                sqlite3.connect(f"file:{self.rig.cluster.journal}?mode=ro", uri=True) as one,
                sqlite3.connect(target) as other,
            ):
                one.backup(other)
            shutil.copy(f"{self.rig.cluster.journal}.key", f"{target}.key")
        except (OSError, sqlite3.Error):
            return None
        return str(target)

    def _refused(self, journal: str | None, port: int) -> Fault | None:
        """Start a controller, and note how it ends; only while the first one has its journal."""
        if journal is None or not self.rig.controller_has_journal():
            return None
        words = [*PRESAGE, "controller", "--journal", journal, "--port", port]
        self.rig.cluster.environment = {}
        process = self.rig.cluster.start("second", [*words, "--lease-s", self.spans.lease_s])
        try:
            status: int | None = process.wait(REFUSED_WITHIN_S)
        except subprocess.TimeoutExpired:
            status = None
        self.rig.kill("second")
        return Fault(0.0, None, {"status": status})


def fill(folder: Path) -> Undo:
    """Leave no room on a file system, also of what others free; until the result is called."""
    filling, over = folder / "filling", threading.Event()

    def keep() -> None:
        with filling.open("ab", buffering=0) as file:
            while True:
                with suppress(OSError):
                    for size in _sizes():
                        with suppress(OSError):
                            while True:
                                file.write(b"x" * size)
                if over.wait(0.05):
                    break
        filling.unlink()

    thread = threading.Thread(target=keep)
    thread.start()

    def undo() -> None:
        over.set()
        thread.join()

    return undo


def _sizes() -> Iterator[int]:
    return iter((65536, 4096, 512))
