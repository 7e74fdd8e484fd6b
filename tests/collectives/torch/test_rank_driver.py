"""Driver of a rank without a network: what a peer can still get from it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from presage.collectives.core import messages as m
from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.view import JobView, Reason
from presage.collectives.switch.client import Completed
from presage.collectives.torch.driver.rank_driver import RankDriver
from presage.collectives.torch.peers.messages import Ballot

SIZE_BYTES = 1 << 20
ON_SWITCH = 2  # the only number that the view allows


class Link:
    completed = None

    def all_reduce(self, buffer, number, epoch):
        buffer *= 2
        self.completed = Completed(number, buffer.copy())


@pytest.fixture
def driver():
    """Rank 0 of 2, which has reduced all numbers up to that on the switch."""
    exchange: Any = SimpleNamespace(
        has_epochs=False, is_under_way=False, is_ready=True, equal_sizes={SIZE_BYTES: 15},
        is_new=lambda size: False, begin=lambda *_: None, finish=lambda check: None,
    )  # fmt: skip
    link: Any = Link()
    codes = [Reason.IN_USE] * 8
    codes[ON_SWITCH] = Reason.NO_OTHER_ARRIVAL
    agreement = InBandAgreement((JobView(1, 0, bytes(codes)),))
    driver: Any = RankDriver(
        m.Member("job", 0, 2), agreement,
        exchange=exchange, link=link, connection=None, timeout_s=5,
    )  # fmt: skip
    driver.sent = []
    driver.peers = SimpleNamespace(
        lost=[], send=lambda rank, message: driver.sent.append((rank, message))
    )
    for _ in range(ON_SWITCH):
        assert not driver.begin(SIZE_BYTES)
        driver.end_ring()
    assert driver.begin(SIZE_BYTES)
    assert driver.reduce_on_switch(np.ones(4, np.float32))
    return driver


def test_i4_the_sum_of_the_switch_is_kept_for_peers_until_the_next_ring_has_ended(driver):
    assert not driver.can_skip(15)  # a counted ring would drop the sum when it starts

    assert not driver.begin(SIZE_BYTES)
    driver.receive_from_peer(1, Ballot(m.Vote("job", 1, 0, ON_SWITCH, None), SIZE_BYTES))

    (rank, ballot), *more = driver.sent
    assert (rank, more) == (1, [])
    assert np.frombuffer(ballot.data, np.float32).tolist() == [2.0] * 4
    driver.end_ring()
    assert driver.can_skip(15)
