"""Both aggregators decide as the verified state machine of a switch, for any sequence of events."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from presage.collectives.core import switch as machine
from presage.collectives.core.messages import Admission, Admitted, Contribution, Refusal, Result
from presage.collectives.switch.control import SwitchControl
from presage.collectives.switch.errors import OldAdmissionError
from presage.collectives.switch.protocol import Header, Kind, token_digest
from tests.collectives.switch.ranks import RawRank

INCARNATION, EVENTS = 50, 400
JOBS = ("first", "second", "third")


@dataclass
class Twin:
    """One aggregator and one state machine that get the same events."""

    ranks: dict[tuple[str, int], RawRank]
    control: SwitchControl
    state: machine.SwitchState
    numbers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JOBS, 0))
    half_done: dict[str, int] = field(default_factory=dict)  # epoch of the AllReduce of rank 0
    results: list[str] = field(default_factory=list)

    def outcomes(self, job, rank):
        """Return what a rank has got: names of frames."""
        connection = self.ranks[job, rank]
        kinds = []
        for _ in range(2):  # an answer overtakes sums that are not being sent yet
            connection.send(Header(Kind.STATS), token_digest(""))
            while (kind := connection.receive()[0].kind) != Kind.STATISTICS:
                kinds.append(Kind(kind).name)
        return kinds

    def step(self, message):
        self.state, answers = machine.receive(self.state, message)
        return answers

    def contribute(self, job, rank, epoch):
        """Send the data of a rank to both; return what the machine answers to each rank."""
        number = self.numbers[job]
        connection = self.ranks[job, rank]
        connection.begin(number, 4, epoch)
        connection.chunk(number, 0, bytes(16), epoch)
        names = {Refusal: "REFUSED", Result: "SUM"}
        answers = self.step(Contribution(job, rank, 2, number, epoch, epoch))
        expected = {r: [names[type(a)] for a in answers if a.rank == r] for r in (0, 1)}
        assert self.outcomes(job, rank) == expected[rank]
        self.results += expected[rank] or ["waits"]
        return expected

    def begin(self, job, epoch):
        """Let rank 0 begin the next AllReduce; a refusal holds for rank 1 too."""
        if self.contribute(job, 0, epoch)[0]:
            self.contribute(job, 1, epoch)
            self.numbers[job] += 1
        else:
            self.half_done[job] = epoch

    def finish(self, job):
        """Let rank 1 contribute to the AllReduce that rank 0 has begun."""
        epoch = self.half_done.pop(job)
        expected = self.contribute(job, 1, epoch)
        assert self.outcomes(job, 0) == expected[0]
        self.numbers[job] += 1

    def admit(self, message):
        answers = self.step(message)
        confirmation = [answer for answer in answers if isinstance(answer, Admitted)]
        try:
            assert [self.control.admit(message)] == confirmation
        except OldAdmissionError:
            assert not confirmation
        self.results.append("admitted" if confirmation else "outdated")
        for job in list(self.half_done):
            evicted = [a for a in answers if isinstance(a, Refusal) and a.job == job]
            assert self.outcomes(job, 0) == ["REFUSED"] * len(evicted)
            if evicted:
                self.results.append("evicted")
                epoch = self.half_done.pop(job)
                self.contribute(job, 1, epoch)  # the refusal holds for both ranks
                self.numbers[job] += 1


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_i7_aggregator_decides_as_the_verified_state_machine(start, slots, seed):
    choose = random.Random(seed)
    switch = start(controlled=True, slots=slots, incarnation=INCARNATION, lease_ms=60_000)
    ranks = {
        (job, rank): RawRank(switch, rank, job=job, epoch=0) for job in JOBS for rank in (0, 1)
    }
    token = 0
    with SwitchControl(switch.host, switch.port) as control:
        twin = Twin(ranks, control, machine.SwitchState(slots, INCARNATION))
        for event in range(EVENTS):
            job, epoch = choose.choice(JOBS), event // 20
            if choose.random() < 0.2:
                admitted = sorted(choose.sample(JOBS, choose.randint(1, 3)))
                floors = tuple((job, max(0, epoch + choose.randint(-9, 1))) for job in admitted)
                token += choose.choice([1, 1, 1, -1])
                is_known = dict(twin.state.floors) and token == twin.state.token
                floors = twin.state.floors if is_known else floors
                incarnation = INCARNATION - (choose.random() < 0.1)
                twin.admit(Admission(incarnation, max(token, 0), floors))
            elif job in twin.half_done:
                twin.finish(job)
            else:
                twin.begin(job, epoch)

    expected = {"REFUSED", "SUM", "waits", "admitted", "outdated", "evicted"}
    assert expected == set(twin.results)
