"""Arbiter for tests: the controller of the core behind pickled messages, without predictions.

``TestArbiter`` runs in the process of a test, ``TestConnection`` in each rank. A test decides the
views. The switch is not controlled, so that the arbiter confirms its own fences.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from presage.collectives.core import in_band_controller, two_phase_controller
from presage.collectives.core import messages as m
from presage.collectives.core.fencing import JobPlan
from presage.collectives.core.view import JobView, Reason

VARIABLE = "PRESAGE_TEST_ARBITER"
_KEY = b"test"
ROUND_S = 1.0  # longest round of the two-phase protocol


@dataclass(frozen=True)
class TestAddress:
    __test__ = False
    name: str
    host: str
    port: int
    token: str = ""
    epoch: int = 0


class TestArbiter:
    """Controller of one job."""

    __test__ = False

    def __init__(self, job, ranks, protocol="in_band"):
        self.job, self.ranks = job, ranks
        is_in_band = protocol == "in_band"
        self.machine = in_band_controller if is_in_band else two_phase_controller
        self.state = (
            in_band_controller.InBandController()
            if is_in_band
            else two_phase_controller.TwoPhaseController()
        )
        self.switches = {}  # of each rank
        self.connections = {}
        self.reports = []
        self.plans = []
        self.lock = threading.RLock()
        self.is_closed = False
        self._receive(m.Hello(1))
        self.listener = Listener(("127.0.0.1", 0), authkey=_KEY)
        self.address = f"127.0.0.1:{self.listener.address[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._resend, daemon=True).start()

    def use_switch(self, switch, rank=None, port=None):
        """Let one rank, or all, use a switch."""
        address = TestAddress("s", switch.host, port or switch.port, epoch=self.state_epoch)
        with self.lock:
            for one in range(self.ranks) if rank is None else [rank]:
                self.switches[one] = address
                if one in self.connections:
                    self._send(one, ("switches", (address,)))

    @property
    def state_epoch(self):
        return getattr(self.state, "epoch", 0)

    def allow(self, decide=lambda number: True, first=0, window=20_000):
        """Publish a view in which ``decide`` says which numbers may use the switch."""
        codes = (Reason.NO_OTHER_ARRIVAL, Reason.IN_USE)
        table = bytes(codes[not decide(number)] for number in range(first, first + window))
        self.plans = [JobPlan(self.job, self.ranks, JobView(0, first, table))]
        with self.lock:
            self.machine_step(self.machine.propose(self.state, self.plans))

    def machine_step(self, step):
        self.state = step.state
        for message in step.messages:
            if isinstance(message, m.Admission):  # a switch that confirms at once
                self._receive(m.Admitted(message.incarnation, message.token))
            elif message.rank in self.connections:
                self._send(message.rank, ("message", message))

    def close(self):
        """End like a process that is killed."""
        self.is_closed = True
        self.listener.close()
        with self.lock:
            for connection in self.connections.values():
                connection.close()
            self.connections = {}

    def _send(self, rank, content):
        with contextlib.suppress(OSError, BrokenPipeError):
            self.connections[rank].send(content)

    def _accept(self):
        while not self.is_closed:
            try:
                connection = self.listener.accept()
            except Exception:
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection):
        try:
            rank = connection.recv()
            with self.lock:
                self.connections[rank] = connection
                if rank in self.switches:
                    self._send(rank, ("switches", (self.switches[rank],)))
            while True:
                content = connection.recv()
                if isinstance(content, tuple) and content[0] == "report":
                    self.reports.append(content[1:])
                else:
                    self._receive(content)
        except (EOFError, OSError, TypeError):
            return

    def _receive(self, message):
        with self.lock:
            self.machine_step(self.machine.receive(self.state, message))

    def _resend(self):
        round_, since_s = None, 0.0
        while not self.is_closed:
            time.sleep(0.1)
            with self.lock:
                if round_ != (round_ := getattr(self.state, "tag", None)):
                    since_s = time.monotonic()
                elif round_ and time.monotonic() > since_s + ROUND_S:
                    # Ranks that waited too long have aborted it, and ignore it.
                    self.machine_step(self.machine.time_out(self.state))
                self.machine_step(self.machine.resend(self.state))
                if not self.state.is_stable and self.state.can_propose:  # an aborted round
                    self.machine_step(self.machine.propose(self.state, self.plans))


class TestConnection:
    """Connection of a rank, with the interface of ``RankConnection``."""

    __test__ = False

    def __init__(self, rank):
        self.switches = ()
        self._arrived: deque = deque()
        host, port = os.environ[VARIABLE].split(":")
        self._address, self._rank = (host, int(port)), rank
        self._connection: Any = None
        self._is_closed = False
        threading.Thread(target=self._receive, daemon=True).start()

    def messages(self):
        found = []
        while self._arrived:
            found.append(self._arrived.popleft())
        return found

    def send(self, message):
        with contextlib.suppress(OSError, AttributeError):
            self._connection.send(message)

    def report(self, phases, *, started, now_s):
        with contextlib.suppress(OSError, AttributeError):
            self._connection.send(("report", phases, started))

    def record(self, ended):
        pass

    def close(self):
        self._is_closed = True

    def _receive(self):
        while not self._is_closed:
            with contextlib.suppress(Exception):
                self._connection = Client(self._address, authkey=_KEY)
                self._connection.send(self._rank)
                while True:
                    kind, content = self._connection.recv()
                    if kind == "switches":
                        self.switches = content
                    else:
                        self._arrived.append(content)
            time.sleep(0.1)
