"""Pure-Python aggregator: the event loop, and registration of jobs.

Used where no C compiler is: ``python -m presage.collectives.switch.pure_python.server OPTIONS``.
"""

from __future__ import annotations

import hmac
import json
import os
import resource
import selectors
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from presage.collectives.switch.options import (
    SwitchOptions,
    parse_arguments,
    token_from_environment,
)
from presage.collectives.switch.protocol import (
    BEGIN,
    HELLO,
    MAX_NUMBER,
    WELCOME,
    Code,
    Header,
    Kind,
    ProtocolError,
    chunk_count,
    frame,
    is_name,
)
from presage.collectives.switch.pure_python.admissions import Admissions
from presage.collectives.switch.pure_python.connection import Connection
from presage.collectives.switch.pure_python.counters import Counters
from presage.collectives.switch.pure_python.job import Member
from presage.collectives.switch.pure_python.job_table import JobTable
from presage.collectives.switch.pure_python.slots import Slot
from presage.collectives.switch.tcp import configure, listen

_GREETING_S = 5.0
_SPARE_FILES, _SPARE_CONNECTIONS = 64, 16  # the latter get REFUSED
_MAX_CHUNKS = 2**32 - 1


class PythonSwitch:
    """Aggregator in one thread.

    Parameters
    ----------
    token : bytes
        SHA-256 of the token that clients must have; zeros accept clients without one.
    """

    def __init__(self, options: SwitchOptions, token: bytes) -> None:
        self._options, self._token = options, token
        self._instance = int.from_bytes(os.urandom(8), "little")
        self._counts = Counters()
        values = options.chunk_bytes // 4
        self._slots = [Slot(options.window, values) for _ in range(options.slots)]
        self._jobs = JobTable(options, self._slots, self._counts)
        self._admissions = Admissions(options, token, self._jobs)
        self._connections: set[Connection] = set()
        self._changed: set[Connection] = set()  # those that may have something to send
        self._selector = selectors.DefaultSelector()
        self._listener = listen(options.host, options.port)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve for ever."""
        next_check_s, step_s = 0.0, min(1.0, self._options.lease_s / 8)
        while True:
            for key, events in self._selector.select(step_s):
                if key.data is None:
                    self._accept()
                else:
                    self._serve_one(key.data, events)
            while self._changed:
                self._update(self._changed.pop())
            now_s = time.monotonic()
            if now_s >= next_check_s:
                next_check_s = now_s + step_s
                self._expire(now_s)

    # Connections ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        if len(self._connections) > self._options.max_connections + _SPARE_CONNECTIONS:
            peer.close()
            return
        configure(peer, self._options.lease_s)
        connection = Connection(
            peer, self._request, self._received, self._changed.add, self._counts
        )
        self._connections.add(connection)
        self._selector.register(peer, selectors.EVENT_READ, connection)
        if len(self._connections) > self._options.max_connections:
            connection.end(Code.FULL, "the switch has no free connection")

    def _serve_one(self, connection: Connection, events: int) -> None:
        self._changed.add(connection)
        try:
            if events & selectors.EVENT_READ:
                connection.read()
            if events & selectors.EVENT_WRITE:
                connection.write(self._sum_sent)
        except ProtocolError as error:
            connection.end(Code.BAD_REQUEST, str(error))
        except OSError:
            self._close(connection, "connection closed")

    def _update(self, connection: Connection) -> None:
        """Send at once what there is; let the selector wait for the rest."""
        if connection not in self._connections:
            return
        if connection.has_output:
            self._serve_one(connection, selectors.EVENT_WRITE)
            self._changed.discard(connection)
        if connection not in self._connections:
            return
        events = selectors.EVENT_READ
        if connection.has_output:
            events |= selectors.EVENT_WRITE
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, connection)

    def _close(self, connection: Connection, reason: str) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()
            connection.detach(reason)

    def _expire(self, now_s: float) -> None:
        for job in self._jobs:
            if job.slot and now_s - job.progress_s > self._options.lease_s:
                job.expire()
        for connection in list(self._connections):
            is_greeted = connection.member or connection.admission_bytes
            if not is_greeted and now_s - connection.since_s > _GREETING_S:
                self._close(connection, "no registration")
        if self._options.parent and os.getppid() != self._options.parent:
            sys.exit()

    # Requests -------------------------------------------------------------------------------------

    def _request(self, connection: Connection, header: Header, payload: bytes) -> None:
        member = connection.member
        if header.kind in (Kind.STATS, Kind.FENCE):
            self._control(connection, header, payload)
        elif header.kind == Kind.GREET and not member:
            self._admissions.greet(connection, header, payload)
        elif header.kind == Kind.ADMISSION:
            self._admissions.admit(connection, header, payload)
        elif header.kind == Kind.HELLO and not member:
            self._register(connection, header, payload)
        elif header.kind == Kind.BEGIN and member and len(payload) == BEGIN.size:
            self._check_numbers(header)
            self._begin(member, header, *BEGIN.unpack(payload))
        elif header.kind == Kind.CANCEL and member:
            self._check_numbers(header)
            member.job.cancel(member, header.number)
        else:
            raise ProtocolError(f"frame of kind {header.kind} is not allowed here")

    def _begin(self, member: Member, header: Header, values: int) -> None:
        if chunk_count(values, self._options.chunk_bytes) >= _MAX_CHUNKS:
            raise ProtocolError("the buffer has too many chunks")
        job, now_s = member.job, time.monotonic()
        if member.number is None and (refusal := self._admissions.refusal(job.name)):
            job.refuse(member, header.number, *refusal)
            return
        fence = max(self._jobs.fence, self._admissions.floors.get(job.name, 0))
        job.begin(member, header.number, header.epoch, values, fence, now_s)

    def _check_numbers(self, header: Header) -> None:
        if max(header.number, header.epoch) > MAX_NUMBER:
            raise ProtocolError("a number or an epoch is above 2**63 - 1")

    def _received(self, member: Member) -> None:
        member.job.received(member, time.monotonic())

    def _sum_sent(self, member: Member) -> None:
        member.job.sum_sent(member, time.monotonic())

    def _control(self, connection: Connection, header: Header, payload: bytes) -> None:
        if not hmac.compare_digest(payload, self._token):
            connection.end(Code.BAD_TOKEN, "the token is not the switch's")
        elif header.kind == Kind.STATS:
            content = json.dumps(self._statistics()).encode()
            connection.send(frame(Header(Kind.STATISTICS), content))
        elif header.epoch > MAX_NUMBER:
            raise ProtocolError("the epoch is above 2**63 - 1")
        else:
            self._jobs.fence = max(self._jobs.fence, header.epoch)
            connection.send(frame(Header(Kind.FENCED, epoch=self._jobs.fence)))

    def _register(self, connection: Connection, header: Header, payload: bytes) -> None:
        if len(payload) < HELLO.size or header.epoch > MAX_NUMBER:
            raise ProtocolError("HELLO is too short or has no valid epoch")
        rank, ranks, switch_token, token = HELLO.unpack_from(payload)
        name = payload[HELLO.size :]
        if not hmac.compare_digest(switch_token, self._token):
            connection.end(Code.BAD_TOKEN, "the token is not the switch's")
        elif not is_name(name) or not rank < ranks <= self._options.max_ranks:
            reason = f"the name is invalid, or rank {rank} of {ranks} is out of range"
            connection.end(Code.BAD_REQUEST, reason)
        else:
            place = (rank, ranks)
            found = self._jobs.admit(name.decode(), place, token, header.epoch, connection)
            if isinstance(found, Member):
                connection.member = found
                limits = (self._options.chunk_bytes, self._options.window, self._options.slots)
                payload = WELCOME.pack(*limits, ranks, self._instance)
                connection.send(frame(Header(Kind.WELCOME), payload))
            else:
                connection.end(*found)

    def _statistics(self) -> dict[str, object]:
        return {
            "implementation": "python",
            "instance": self._instance,
            "fence": self._jobs.fence,
            "slots": len(self._slots),
            "slots_in_use": sum(not slot.is_free for slot in self._slots),
            "connections": len(self._connections),
            **self._counts.as_json(),
            **self._admissions.as_json(),
            "jobs": [job.as_json() for job in self._jobs if job.is_registered],
        }


def main(words: Sequence[str]) -> None:
    """Serve, after a line with the port on stdout."""
    options = parse_arguments(words)
    options = replace(options, max_connections=_limit_connections(options.max_connections))
    try:
        switch = PythonSwitch(options, token_from_environment())
    except OSError as error:
        sys.exit(f"switch: {options.host} port {options.port}: {error}")
    sys.stdout.write(f"listening {switch.address[1]}\n")
    sys.stdout.flush()
    switch.serve()


def _limit_connections(connections: int) -> int:
    """Raise the limit of open files; return the connections that it allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return connections if most == resource.RLIM_INFINITY else min(connections, most - _SPARE_FILES)


if __name__ == "__main__":
    main(sys.argv[1:])
