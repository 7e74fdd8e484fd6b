"""Rank of a test job, as a process: RankConnection, the core's machine, SwitchClient and a ring.

It writes a line for each AllReduce: number, way, reason and time. Options are the keys of a JSON
object: see ``Options``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from presage.collectives.arbiter.rank_connection import RankConnection, Registration
from presage.collectives.arbiter.rank_report import EndedAllReduce
from presage.collectives.core import rank as machine
from presage.collectives.core.demand import Call
from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.messages import (
    Ack,
    Adopted,
    Contribution,
    Done,
    Member,
    Refusal,
    RefusalReason,
    Result,
    Status,
    Vote,
)
from presage.collectives.core.rank import Phase, RankState
from presage.collectives.core.two_phase import TwoPhaseAgreement
from presage.collectives.core.view import Reason
from presage.collectives.switch.client import SwitchClient
from presage.collectives.switch.errors import RefusedError, SwitchError, SwitchLostError
from presage.collectives.v1 import arbiter_pb2 as pb
from tests.collectives.arbiter.support.mesh import Mesh

FLAGS = 16  # pending views whose adoption can be seen in a sum
SILENCE_S = 0.5  # of the controller, after which a locked rank asks its peers, as in the backend


@dataclass(frozen=True)
class Options:
    folder: str
    arbiter: str
    job: str
    rank: int
    ranks: int
    token: str = "secret"
    agreement: str = "in_band"
    period_s: float = 0.04
    sizes: tuple[int, ...] = (4000, 4000)
    is_predictable: bool = True
    seconds: float = 5.0
    arbiter_token: str = ""


@dataclass(frozen=True)
class Phases:
    period_s: float
    calls: tuple[Call, ...]
    anchor_number: int
    anchor_s: float
    margin_s: float = 0.002


class Rank:
    def __init__(self, options: Options, log) -> None:
        self.options, self.log = options, log
        self.mesh = Mesh(Path(options.folder), options.rank, options.ranks)
        self.connection = RankConnection(
            options.arbiter,
            Registration(
                options.job, options.rank, options.ranks, options.token, agreement=options.agreement
            ),
            token=options.arbiter_token,
        )
        agreement = InBandAgreement() if options.agreement == "in_band" else TwoPhaseAgreement()
        self.state = RankState(Member(options.job, options.rank, options.ranks), agreement)
        self.client: SwitchClient | None = None
        self.parts: dict[int, dict[int, tuple[int, np.ndarray]]] = {}  # of rings, by number
        self.last: np.ndarray | None = None
        self.results: dict[int, np.ndarray] = {}

    def run(self) -> None:
        end_s = time.monotonic() + self.options.seconds
        is_last = False
        while not is_last:
            begin_s, anchor = time.monotonic(), self.state.number
            self.report(anchor, begin_s)
            for index, size in enumerate(self.options.sizes):
                wants_end = index == 0 and time.monotonic() > end_s
                is_last = self.all_reduce(size, wants_end) or is_last
            time.sleep(max(0.0, begin_s + self.options.period_s - time.monotonic()))
        time.sleep(0.3)  # peers may still vote
        self.handle_arrived(0.0)
        self.connection.close()

    def report(self, anchor: int, begin_s: float) -> None:
        gap_s = self.options.period_s / 4
        calls = tuple(Call(i * gap_s, size) for i, size in enumerate(self.options.sizes))
        phases = Phases(self.options.period_s, calls, anchor, begin_s)
        self.connection.report(
            phases if self.options.is_predictable else None,
            started=self.state.started,
            now_s=begin_s,
        )

    def all_reduce(self, size: int, wants_end: bool) -> bool:
        """Run one AllReduce; return whether a rank wants to end after this iteration."""
        self.take_messages()
        waited_s = time.monotonic()
        while not self.state.agreement.can_start:
            if time.monotonic() - waited_s > SILENCE_S:
                self.step(machine.time_out_agreement(self.state))
                waited_s = time.monotonic()
            self.handle_arrived(0.005)
            self.take_messages()
        number, begin_s = self.state.number, time.monotonic()
        values = np.full(size // 4 + 1, float(self.options.rank + number % 7), np.float32)
        values[-1] = wants_end
        view = self.state.agreement.view
        reason = view.reason(number)
        self.step(machine.start(self.state), values)
        if self.state.number == number and self.state.phase is Phase.INC:
            raise AssertionError("an AllReduce on the switch must have ended or failed")
        while self.state.number == number:
            if self.state.phase is Phase.RING:
                self.ring(number, values)
            else:
                self.handle_arrived(0.01)
                self.receive_from_controller()
        total = self.last
        assert total is not None
        expected = sum(range(self.options.ranks)) + self.options.ranks * (number % 7)
        assert abs(total[0] - expected) < 1e-3, (number, total[0], expected)
        way = self.way
        self.connection.record(
            EndedAllReduce(number, begin_s, time.monotonic() - begin_s, size, reason, way)
        )
        row = [number, pb.Way.Name(way), Reason(reason).name, time.time(), view.epoch]
        self.log.write(json.dumps(row) + "\n")
        self.log.flush()
        return bool(total[size // 4] > 0)

    def step(self, step: machine.Step, values: np.ndarray | None = None) -> None:
        self.state = step.state
        for message in step.messages:
            if isinstance(message, Contribution):
                assert values is not None
                self.contribute(message, values)
            elif isinstance(message, Vote):
                self.mesh.send(message.receiver, (message, self.results.get(message.number)))
            elif isinstance(message, Status):
                self.mesh.send(message.receiver, (message, None))
            elif isinstance(message, Adopted | Ack | Done):
                self.connection.send(message)

    def contribute(self, message: Contribution, values: np.ndarray) -> None:
        """Sum on the switch, with a one for each of the views since the one in use."""
        views = getattr(self.state.agreement, "views", (self.state.agreement.view,))
        flags = np.zeros(FLAGS, np.float32)
        flags[: len(views) - 1] = 1
        buffer = np.concatenate([values, flags])
        try:
            client = self.connected(message.epoch)
            client.all_reduce(buffer, number=message.number, epoch=message.epoch, timeout_s=2.0)
        except RefusedError:
            refusal = Refusal(message.job, message.rank, message.number, RefusalReason.STALE)
            self.way = pb.REFUSED
            self.step(machine.receive(self.state, refusal))
            return
        except SwitchError:
            self.client = None
            self.way = pb.REFUSED
            self.step(machine.vote(self.state))
            return
        agreed = int((buffer[-FLAGS:] == self.options.ranks).sum())
        self.complete(message.number, buffer[:-FLAGS], views[agreed].epoch)

    def complete(self, number: int, total: np.ndarray, min_epoch: int) -> None:
        self.way, self.last = pb.INC, total
        self.results = {number: total}
        member = self.state.member
        self.step(machine.receive(self.state, Result(member.job, member.rank, number, min_epoch)))

    def connected(self, epoch: int) -> SwitchClient:
        if self.client is not None and self.client.is_closed:
            self.client = None
        if self.client is None:
            if not self.connection.switches:
                raise SwitchLostError("no switch")
            address, options = self.connection.switches[0], self.options
            self.client = SwitchClient(
                address.host, address.port, job=options.job, rank=options.rank,
                ranks=options.ranks, epoch=max(address.epoch, epoch), token=options.token,
                switch_token=address.token, timeout_s=2.0,
            )  # fmt: skip
        return self.client

    def ring(self, number: int, values: np.ndarray) -> None:
        """Sum over the connections between ranks, with the smallest contributed epoch."""
        for peer in self.state.member.peers:
            self.mesh.send(peer, (number, self.options.rank, self.state.contributed, values))
        begin_s = time.monotonic()
        while len(self.parts.get(number, {})) < self.options.ranks - 1:
            self.handle_arrived(0.01)
            self.receive_from_controller()
            assert time.monotonic() - begin_s < 20, "the ring does not end"
        parts = self.parts.pop(number)
        self.last = values + sum(part for _, part in parts.values())
        if self.way != pb.REFUSED:
            self.way = pb.RING
        min_epoch = min([self.state.contributed, *(epoch for epoch, _ in parts.values())])
        self.step(machine.complete_ring(self.state, min_epoch))

    def handle_arrived(self, timeout_s: float) -> None:
        self.mesh.wait(timeout_s)
        while self.mesh.arrived:
            match self.mesh.arrived.popleft():
                case (Vote() as vote, total):
                    before = self.state.number
                    self.step(machine.receive(self.state, vote))
                    if self.state.number > before:  # by the result of a peer
                        self.way, self.last = pb.INC, total
                        self.results = {before: total}
                case (Status() as status, _):
                    self.step(machine.receive(self.state, status))
                case (number, rank, epoch, part):
                    self.parts.setdefault(number, {})[rank] = (epoch, part)

    def take_messages(self) -> None:
        self.way = pb.RING
        self.receive_from_controller()

    def receive_from_controller(self) -> None:
        """Handle messages of the controller, also during an AllReduce, as the backend does."""
        for message in self.connection.messages():
            self.step(machine.receive(self.state, message))


def main(words: Sequence[str]) -> None:
    options = Options(**json.loads(words[0]))
    with Path(options.folder, f"{options.rank}.log").open("w") as log:
        Rank(options, log).run()


if __name__ == "__main__":
    main(sys.argv[1:])
