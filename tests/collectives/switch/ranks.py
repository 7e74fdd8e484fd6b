"""Ranks of test jobs: clients in threads, and raw connections that can misbehave."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from presage.collectives.switch.client import SwitchClient, statistics
from presage.collectives.switch.errors import SwitchError
from presage.collectives.switch.protocol import (
    BEGIN,
    HEADER_BYTES,
    HELLO,
    Header,
    Kind,
    frame,
    pack,
    token_digest,
    unpack,
)
from tests.support.waiting import wait_until

TOKEN = "token of the job"


def connect(switch, job="job", ranks=2, epoch=1, token=TOKEN, **more):
    """Return clients of all ranks of a job."""
    return [connect_one(switch, rank, ranks, job, epoch, token, **more) for rank in range(ranks)]


def connect_one(switch, rank, ranks=2, job="job", epoch=1, token=TOKEN, **more):
    """Return the client of one rank."""
    return SwitchClient(
        switch.host, switch.port, job=job, rank=rank, ranks=ranks, epoch=epoch, token=token, **more
    )


def values_of(ranks, size, seed=0):
    """Return a buffer for each rank."""
    return list(np.random.default_rng(seed).normal(size=(ranks, size)).astype(np.float32))


def ordered_sum(buffers):
    """Return the sum in the order of ranks, whose bits the switch promises."""
    total = buffers[0].copy()
    for one in buffers[1:]:
        total += one
    return total


def reduce(clients, buffers, number=1, epoch=1, **more):
    """Run an AllReduce on all clients; return the error of each, or None."""

    def run(client, buffer):
        try:
            client.all_reduce(buffer, number=number, epoch=epoch, **more)
        except SwitchError as error:
            return error
        return None

    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(run, clients, buffers))


def wait_for(switch, condition):
    """Wait until the statistics of a switch meet a condition."""
    wait_until(lambda: condition(json.loads(statistics(switch.host, switch.port))), 10)


class RawRank:
    """Rank that sends the frames that a test wants."""

    def __init__(self, switch, rank=None, ranks=2, job="job", epoch=1, receive_bytes=None):
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(10)
        self.socket.connect((switch.host, switch.port))
        if rank is not None:
            hello = HELLO.pack(rank, ranks, token_digest(""), token_digest(TOKEN))
            self.send(Header(Kind.HELLO, epoch=epoch), hello + job.encode())
            assert self.receive()[0].kind == Kind.WELCOME

    def send(self, header, payload=b""):
        self.socket.sendall(frame(header, payload))

    def send_header(self, header):
        self.socket.sendall(pack(header))

    def begin(self, number, values, epoch=1):
        self.send(Header(Kind.BEGIN, number=number, epoch=epoch), BEGIN.pack(values))

    def chunk(self, number, index, payload, epoch=1):
        self.send(Header(Kind.CHUNK, chunk=index, number=number, epoch=epoch), payload)

    def receive(self):
        header = unpack(self._exactly(HEADER_BYTES))
        return header, self._exactly(header.size)

    def ends(self):
        """Return whether the switch closes the connection, after any frames."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self):
        self.socket.close()

    def _exactly(self, count):
        content = b""
        while len(content) < count:
            part = self.socket.recv(count - len(content))
            if not part:
                raise ConnectionResetError
            content += part
        return content
