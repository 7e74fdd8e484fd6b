"""A flood of a server, by a process of its own that has no token.

``python -m benchmarks.floods.attack '{"kind": ..., "port": ...}'`` reads one word a line from its
standard input and answers each with a line of JSON:

``push``   send the flood once, as fast as the server takes it
``hold``   keep open what is open, once all is sent. Calls and connections that the server ends are
           begun again, but only 10 s after they were begun before
``renew``  begin again at once whatever the server has ended, and ends from now on
``stop``   end; return the rates since ``renew``, or else ``push``

Of kind "bytes" it is the floor of a flood: as many bytes a second to a process that discards them.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.serving.support.http2 import Connection

RENEW_S = 10.0  # between two begins of one call or connection while the flood is held
PART = bytes(2**20)
WATCH = "/grpc.health.v1.Health/Watch"


@dataclass(frozen=True, slots=True)
class Flood:
    """Kind and size of a flood.

    Attributes
    ----------
    kind : {"calls", "messages", "bodies", "sockets", "bytes"}
        Calls without a message; messages without their end; bodies of HTTP without their second
        half; connections without a byte; the floor of messages or bodies.
    count, connections : int
        Of these at once, over so many connections (of HTTP each has its own).
    paths : tuple of str
        Methods of gRPC, or paths of HTTP, in turn.
    size : int
        Bytes of each message or body; of the floor, a second.
    """

    kind: str
    count: int
    connections: int = 1
    paths: tuple[str, ...] = ("/",)
    size: int = 0


class Sent(Connection):
    """Connection that counts the bytes that it sends."""

    sent_bytes = 0

    def _send_raw(self, content: bytes) -> None:
        super()._send_raw(content)
        self.sent_bytes += len(content)


class Attack:
    """Flood that runs in threads."""

    def __init__(self, flood: Flood, port: int, ca: str | None) -> None:
        self._flood, self._port, self._ca = flood, port, Path(ca) if ca else None
        self._renewing = False
        self._begun = self._other_bytes = 0
        locks = [threading.Lock() for _ in range(flood.connections)]
        self._links: list[tuple[threading.Lock, list[Sent]]] = [(lock, []) for lock in locks]
        self.sink: subprocess.Popen[str] | None = None
        self._open: list[Callable[[], bool]] = [lambda: False] * flood.count

    def push(self) -> dict[str, float]:
        """Begin."""
        self._count()
        if self._flood.kind == "bytes":
            self._port, self.sink = sink(self._flood.paths[0])
            for _ in range(self._flood.connections):
                threading.Thread(target=self._paced, daemon=True).start()
        elif self._flood.size:
            self._each_in_a_thread()
        else:
            begin = self._call if self._flood.kind == "calls" else self._connect
            for first in range(self._flood.connections):
                slots = range(first, self._flood.count, self._flood.connections)
                threading.Thread(target=self._all, args=(slots, begin), daemon=True).start()
        return {}

    def hold(self) -> dict[str, float]:
        """Wait until all has been sent; return how many are open."""
        before, ends_s = -1, time.monotonic() + 10
        while (now := self._sent_bytes()) - before > 2**16 and time.monotonic() < ends_s:
            before = now
            time.sleep(0.3)
        return {"open": sum(one() for one in self._open)}

    def renew(self) -> dict[str, float]:
        """Begin again whatever has ended; return how many are still open."""
        still_open = sum(one() for one in self._open)
        self._renewing = True
        self._count()
        if self._flood.size:
            self._each_in_a_thread()
        return {"open": still_open}

    def stop(self) -> dict[str, float]:
        """Return the rates since they were counted."""
        lasted_s = time.monotonic() - self._since_s
        if self.sink is not None:
            self.sink.kill()
        return {
            "begun_per_s": (self._begun - self._begun_before) / lasted_s,
            "mib_per_s": (self._sent_bytes() - self._bytes_before) / lasted_s / 2**20,
        }

    def _count(self) -> None:
        self._since_s, self._begun_before = time.monotonic(), self._begun
        self._bytes_before = self._sent_bytes()

    def _each_in_a_thread(self) -> None:
        one = self._message if self._flood.kind == "messages" else self._body
        for slot in range(self._flood.count):
            threading.Thread(target=self._each, args=(slot, one), daemon=True).start()

    def _sent_bytes(self) -> int:
        return self._other_bytes + sum(one.sent_bytes for _, all_ in self._links for one in all_)

    def _each(self, slot: int, one: Callable[[int], None]) -> None:
        """Send one; while renewing another one whenever the server has ended it."""
        while True:
            while self._open[slot]():
                time.sleep(0.05)
            with suppress(OSError):
                one(slot)
            if not self._renewing:
                break

    def _all(self, slots: range, begin: Callable[[int], None]) -> None:
        """Begin all, and again those that the server ends."""
        begun_s = dict.fromkeys(slots, -RENEW_S)
        while True:
            for slot in slots:
                may_s = begun_s[slot] + (0.0 if self._renewing else RENEW_S)
                if not self._open[slot]() and (now_s := time.monotonic()) >= may_s:
                    begun_s[slot] = now_s
                    with suppress(OSError):
                        begin(slot)
            time.sleep(0.01 if self._renewing else 0.25)

    def _call(self, slot: int) -> tuple[Sent, int]:
        path = self._flood.paths[slot % len(self._flood.paths)]
        lock, all_ = self._links[slot % self._flood.connections]
        with lock:
            if not all_ or all_[-1].closed.is_set():
                all_.append(Sent(self._port, self._ca))
            connection = all_[-1]
            stream = connection.call(path)
        self._open[slot] = lambda: not connection.closed.is_set() and stream not in connection.ended
        self._begun += 1
        if path == WATCH and self._flood.kind == "calls":
            connection.message(stream, 0, 0)
        return connection, stream

    def _message(self, slot: int) -> None:
        connection, stream = self._call(slot)
        connection.message(stream, self._flood.size - 1, self._flood.size - 100, RENEW_S)

    def _connect(self, slot: int) -> socket.socket:
        one = socket.create_connection(("127.0.0.1", self._port), timeout=10)
        one.settimeout(1)
        self._begun += 1

        watched = select.poll()
        watched.register(one, select.POLLIN)  # its end, or a refusal
        self._open[slot] = lambda: not watched.poll(0)
        return one

    def _body(self, slot: int) -> None:
        one, path = self._connect(slot), self._flood.paths[slot % len(self._flood.paths)]
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {self._flood.size}\r\n\r\n"
        one.sendall(head.encode())
        for _ in range(0, self._flood.size // 2, len(PART)):
            one.sendall(PART)
            self._other_bytes += len(PART)

    def _paced(self) -> None:
        """Send messages as to a server, or plain bytes for those of HTTP."""
        of_grpc = self._flood.paths == ("messages",)
        connection = Sent(self._port) if of_grpc else self._connect(0)
        part = 2**18 if of_grpc else len(PART)
        every_s = part * self._flood.connections / self._flood.size
        next_s = time.monotonic()
        while self.sink is not None and self.sink.poll() is None:
            if isinstance(connection, Sent):
                connection.message(connection.call(), 2 * part, part)
            else:
                connection.settimeout(None)
                with suppress(OSError):
                    connection.sendall(PART)
            self._other_bytes += part
            next_s += every_s
            time.sleep(max(0.0, next_s - time.monotonic()))


_SINK = """
import socket, struct, sys, threading
server = socket.create_server(("127.0.0.1", 0), backlog=500)
print(server.getsockname()[1], flush=True)
most = 2**31 - 1
def read(one):
    if sys.argv[1] == "messages":  # windows of HTTP/2 that never close
        one.sendall(struct.pack(">IBIHI", 6 << 8 | 4, 0, 0, 4, most))
        one.sendall(struct.pack(">IBII", 4 << 8 | 8, 0, 0, most - 65_535))
    into = bytearray(2**18)
    while one.recv_into(into):
        pass
while True:
    threading.Thread(target=read, args=(server.accept()[0],), daemon=True).start()
"""


def sink(kind: str) -> tuple[int, subprocess.Popen[str]]:
    """Start a process that reads and discards; return its port."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SINK, kind], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return int(process.stdout.readline()), process


def main() -> None:
    """Execute one command for each line of standard input."""
    found = json.loads(sys.argv[1])
    attack = Attack(Flood(**found["flood"]), found["port"], found["ca"])
    print("{}", flush=True)
    for word in map(str.strip, sys.stdin):
        print(json.dumps(getattr(attack, word)()), flush=True)


if __name__ == "__main__":
    main()
