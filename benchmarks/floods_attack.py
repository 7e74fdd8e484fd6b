"""A flood of a server, by a process of its own that has no token.

``python benchmarks/floods_attack.py '{"kind": ..., "port": ...}'`` reads one word a line from its
standard input and answers each with a line of JSON:

``push``  begin, and send as fast as the server takes it: what the server ends is begun again
``hold``  go on without sending: keep open what is open. Calls and connections that the server ends
          are begun again, but only 10 s after they were begun before
``stop``  end

Of kind "bytes" it is the floor of a flood: as many bytes a second go to a bare process, which reads
and discards them.
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

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from tests.serving.http2 import Connection  # noqa: E402

RENEW_S = 10.0  # between two begins of one call or connection while the flood is held
PART = bytes(2**20)
WATCH = "/grpc.health.v1.Health/Watch"


@dataclass(frozen=True, slots=True)
class Flood:
    """What is sent.

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
    """A connection that counts the bytes which it sends."""

    sent_bytes = 0

    def _send_raw(self, content: bytes) -> None:
        super()._send_raw(content)
        self.sent_bytes += len(content)


class Attack:
    """A flood that goes on in threads."""

    def __init__(self, flood: Flood, port: int, ca: str | None) -> None:
        self._flood, self._port, self._ca = flood, port, Path(ca) if ca else None
        self._pushing = True
        self._begun = self._other_bytes = 0
        self._links: list[tuple[threading.Lock, list[Sent]]] = [
            (threading.Lock(), []) for _ in range(flood.connections)
        ]
        self.sink: subprocess.Popen[str] | None = None
        self._open: list[Callable[[], bool]] = [lambda: False] * flood.count

    def push(self) -> dict[str, float]:
        """Begin."""
        self._since_s = time.monotonic()
        one = {"messages": self._message, "bodies": self._body}.get(self._flood.kind)
        if self._flood.kind == "bytes":
            self._port, self.sink = sink(self._flood.paths[0])
            for _ in range(self._flood.connections):
                threading.Thread(target=self._paced, daemon=True).start()
        elif one is not None:
            for slot in range(self._flood.count):
                threading.Thread(target=self._each, args=(slot, one), daemon=True).start()
        else:
            begin = self._call if self._flood.kind == "calls" else self._connect
            threads = min(self._flood.connections, 12)
            for first in range(threads):
                slots = range(first, self._flood.count, threads)
                threading.Thread(target=self._all, args=(slots, begin), daemon=True).start()
        return {}

    def hold(self) -> dict[str, float]:
        """Stop to send, once what is on its way has been sent; return the rates until now."""
        lasted_s = time.monotonic() - self._since_s
        found = {
            "begun_per_s": self._begun / lasted_s,
            "mib_per_s": self._sent_bytes() / lasted_s / 2**20,
        }
        self._pushing = False
        before, ends_s = -1, time.monotonic() + 5
        while (now := self._sent_bytes()) - before > 2**16 and time.monotonic() < ends_s:
            before = now
            time.sleep(0.3)
        return found

    def stop(self) -> dict[str, float]:
        """Return how many were open to the last."""
        if self.sink is not None:
            self.sink.kill()
        return {"open": sum(one() for one in self._open)}

    def _sent_bytes(self) -> int:
        return self._other_bytes + sum(one.sent_bytes for _, all_ in self._links for one in all_)

    def _each(self, slot: int, one: Callable[[int], None]) -> None:
        """Send one after another, each once the server has ended the one before."""
        while self._pushing:
            with suppress(OSError):
                one(slot)
            while self._pushing and self._open[slot]():
                time.sleep(0.05)

    def _all(self, slots: range, begin: Callable[[int], None]) -> None:
        """Begin all, and again those that the server ends."""
        begun_s = dict.fromkeys(slots, -RENEW_S)
        while True:
            for slot in slots:
                may_s = begun_s[slot] + (0.0 if self._pushing else RENEW_S)
                if not self._open[slot]() and time.monotonic() >= may_s:
                    begun_s[slot] = time.monotonic()
                    with suppress(OSError):
                        begin(slot)
            time.sleep(0.01 if self._pushing else 0.25)

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
        """Send messages as they go to a server, or plain bytes for those of HTTP."""
        of_grpc = self._flood.paths == ("messages",)
        connection = Sent(self._port) if of_grpc else self._connect(0)
        part = 2**18 if of_grpc else len(PART)
        every_s = part * self._flood.connections / self._flood.size
        next_s = time.monotonic()
        while True:
            if isinstance(connection, Sent):
                connection.message(connection.call(), 2 * part, part)
            else:
                connection.settimeout(None)
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
    """Start a process that reads what comes and discards it; return its port."""
    command = [sys.executable, "-c", _SINK, kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return int(process.stdout.readline()), process


def main() -> None:
    """Obey one word a line."""
    found = json.loads(sys.argv[1])
    attack = Attack(Flood(**found["flood"]), found["port"], found["ca"])
    print("{}", flush=True)
    for word in map(str.strip, sys.stdin):
        print(json.dumps(getattr(attack, word)()), flush=True)
        if word == "stop":
            break


if __name__ == "__main__":
    main()
