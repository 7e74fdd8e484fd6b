"""Contract of both aggregators: what is refused, and that all ranks have the same outcome."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from presage.collectives.switch.client import raise_fence, statistics
from presage.collectives.switch.errors import (
    NoSlotError,
    OldEpochError,
    RankLostError,
    RefusedError,
    SwitchLostError,
    UnequalRanksError,
)
from presage.collectives.switch.protocol import Code, Header, Kind
from tests.collectives.switch.ranks import (
    RawRank,
    connect,
    connect_one,
    reduce,
    values_of,
    wait_for,
)


def assert_all(errors, kind, buffers, before):
    """Assert that all ranks have this error, and their buffers as before."""
    assert [type(error) for error in errors] == [kind] * len(buffers)
    assert not any(error.may_be_complete for error in errors)
    for buffer, old in zip(buffers, before, strict=True):
        assert (buffer == old).all()


def test_i4_job_beyond_the_slots_is_refused_at_once_and_later_served(start):
    switch = start(lease_ms=5000)
    first, second = connect(switch, "first"), connect(switch, "second")
    waiting = threading.Thread(target=reduce, args=(first[:1], values_of(1, 9)))
    waiting.start()
    wait_for(switch, lambda found: found["slots_in_use"] == 1)
    buffers = values_of(2, 100_000)
    before = [buffer.copy() for buffer in buffers]

    begin_s = time.monotonic()
    errors = reduce(second, buffers, number=3)

    assert time.monotonic() - begin_s < 2
    assert_all(errors, NoSlotError, buffers, before)
    assert reduce(first[1:], values_of(1, 9)) == [None]
    waiting.join()
    assert reduce(second, buffers, number=4) == [None, None]


def test_number_that_was_refused_to_one_rank_is_refused_to_later_ranks(start):
    switch = start(lease_ms=5000)
    first, second = connect(switch, "first"), connect(switch, "second")
    waiting = threading.Thread(target=reduce, args=(first[:1], values_of(1, 9)))
    waiting.start()
    wait_for(switch, lambda found: found["slots_in_use"] == 1)
    early = reduce(second[:1], values_of(1, 9), number=3)
    assert reduce(first[1:], values_of(1, 9)) == [None]
    waiting.join()

    late = reduce(second[1:], values_of(1, 9), number=3)  # now a slot is free

    assert [type(error) for error in early + late] == [NoSlotError] * 2
    assert early[0].code == late[0].code == Code.NO_SLOT


def test_i7_old_epoch_is_refused_for_all_ranks(switch):
    clients = connect(switch, epoch=4)
    assert reduce(clients, values_of(2, 5), number=1, epoch=6) == [None, None]
    buffers = values_of(2, 50)
    before = [buffer.copy() for buffer in buffers]

    assert_all(reduce(clients, buffers, number=2, epoch=5), OldEpochError, buffers, before)
    assert reduce(clients, buffers, number=3, epoch=6) == [None, None]


def test_i7_epoch_below_the_fence_is_refused(start):
    switch = start(token="secret", fence=3)
    clients = connect(switch, epoch=3, switch_token="secret")
    assert raise_fence(switch.host, switch.port, 5, "secret") == 5
    assert raise_fence(switch.host, switch.port, 4, "secret") == 5  # it never falls

    errors = reduce(clients, values_of(2, 5), number=1, epoch=4)

    assert [type(error) for error in errors] == [OldEpochError] * 2
    assert "epoch 4 is below 5" in str(errors[0])
    with pytest.raises(OldEpochError):
        connect(switch, "other", epoch=4, switch_token="secret")
    assert reduce(clients, values_of(2, 5), number=2, epoch=5) == [None, None]


def test_i7_epoch_of_an_ended_job_is_remembered(switch):
    for client in connect(switch, epoch=9):
        client.close()
    wait_for(switch, lambda found: not found["jobs"])

    with pytest.raises(OldEpochError):
        connect(switch, epoch=8)
    assert reduce(connect(switch, epoch=9, token="new"), values_of(2, 5), epoch=9) == [None, None]


def test_unequal_sizes_are_refused_with_the_sizes(switch):
    buffers = [np.ones(50, np.float32), np.ones(60, np.float32)]
    before = [buffer.copy() for buffer in buffers]

    errors = reduce(connect(switch), buffers)

    assert_all(errors, UnequalRanksError, buffers, before)
    assert "50 values" in str(errors[0]) and "60 values" in str(errors[1])


@pytest.mark.parametrize("sizes", [(0, 1), (100_000, 0), (1, 200_000)])
def test_unequal_sizes_are_refused_whichever_rank_is_first(switch, sizes):
    clients = connect(switch)
    errors = reduce(clients, [np.ones(size, np.float32) for size in sizes])

    assert [type(error) for error in errors] == [UnequalRanksError] * 2
    assert reduce(clients, values_of(2, 100), number=2) == [None, None]


@pytest.mark.parametrize("other", [{"number": 2, "epoch": 1}, {"number": 1, "epoch": 2}])
def test_ranks_at_unequal_numbers_or_epochs_are_refused(switch, other):
    clients = connect(switch)
    found = []
    first = threading.Thread(target=lambda: found.extend(reduce(clients[:1], values_of(1, 9))))
    first.start()
    wait_for(switch, lambda state: state["slots_in_use"] == 1)

    found_later = reduce(clients[1:], values_of(1, 9), **other)
    first.join()

    assert [type(error) for error in found + found_later] == [UnequalRanksError] * 2


def test_number_that_is_over_is_refused(switch):
    clients = connect(switch)
    assert reduce(clients, values_of(2, 5), number=5) == [None, None]

    for number in (5, 4):
        errors = reduce(clients, values_of(2, 5), number=number)
        assert [error.code for error in errors] == [Code.OLD_NUMBER] * 2


def test_i4_rank_does_not_wait_for_ranks_that_are_not_registered(switch):
    client = connect_one(switch, 0)
    (error,) = reduce([client], values_of(1, 5))

    assert isinstance(error, RankLostError) and "rank 1 is not registered" in str(error)
    late = connect_one(switch, 1)
    assert isinstance(reduce([late], values_of(1, 5))[0], RankLostError)
    assert reduce([client, late], values_of(2, 5), number=2) == [None, None]


def test_two_jobs_of_one_name_are_distinguished_by_their_tokens(switch):
    clients = connect(switch)

    with pytest.raises(RefusedError, match="another job is registered as job") as caught:
        connect(switch, token="forged")

    assert caught.value.code == Code.NAME_IN_USE
    assert reduce(clients, values_of(2, 50)) == [None, None]


@pytest.mark.parametrize("forged", ["", "wrong"])
def test_forged_token_of_the_switch_is_refused(start, forged):
    switch = start(token="secret")

    with pytest.raises(RefusedError) as caught:
        connect(switch, switch_token=forged)
    assert caught.value.code == Code.BAD_TOKEN
    with pytest.raises(RefusedError, match="the token is not the switch's"):
        statistics(switch.host, switch.port, forged)
    with pytest.raises(RefusedError, match="the token is not the switch's"):
        raise_fence(switch.host, switch.port, 10**9, forged)
    assert reduce(connect(switch, switch_token="secret"), values_of(2, 5)) == [None, None]


def test_job_that_changes_its_number_of_ranks_replaces_its_old_ranks(switch):
    old = connect(switch, ranks=2)
    with pytest.raises(UnequalRanksError, match="2 ranks at epoch 1, not 3"):
        connect(switch, ranks=3)

    new = connect(switch, ranks=3, epoch=2)

    assert reduce(new, values_of(3, 70), epoch=2) == [None] * 3
    errors = reduce(old, values_of(2, 70), number=2, epoch=2)
    assert all(isinstance(error, SwitchLostError) for error in errors)
    assert reduce(new, values_of(3, 70), number=2, epoch=2) == [None] * 3


def test_rank_that_registers_again_replaces_itself(switch):
    first, second = connect(switch)
    again = connect_one(switch, 0)

    assert reduce([again, second], values_of(2, 70)) == [None, None]
    assert isinstance(reduce([first], values_of(1, 70), number=2)[0], SwitchLostError)


@pytest.mark.parametrize("job", ["", "a b", "x" * 65, "größe", 'a"b', "a\nb"])
def test_invalid_names_are_refused(switch, job):
    with pytest.raises(RefusedError) as caught:
        connect_one(switch, 0, job=job)
    assert caught.value.code == Code.BAD_REQUEST


@pytest.mark.parametrize(("rank", "ranks"), [(2, 2), (0, 0), (0, 65), (2**32 - 1, 2**32 - 1)])
def test_invalid_ranks_are_refused(switch, rank, ranks):
    with pytest.raises(RefusedError) as caught:
        connect_one(switch, rank, ranks)
    assert caught.value.code == Code.BAD_REQUEST


def test_jobs_beyond_the_table_are_refused_until_one_ends(start):
    switch = start(max_jobs=2)
    first = connect_one(switch, 0, job="first")
    second = connect_one(switch, 0, job="second")
    with pytest.raises(RefusedError) as caught:
        connect_one(switch, 0, job="third")
    assert caught.value.code == Code.FULL

    first.close()
    wait_for(switch, lambda found: len(found["jobs"]) == 1)

    connect_one(switch, 0, job="third").close()
    second.close()


def test_cancelled_number_is_refused_for_all_ranks(switch):
    client, rank = connect_one(switch, 0), RawRank(switch, 1)
    rank.send(Header(Kind.CANCEL, number=7, epoch=1))
    header, _ = rank.receive()
    assert (header.code, header.number) == (Code.CANCELLED, 7)

    (error,) = reduce([client], values_of(1, 500), number=7)

    assert isinstance(error, RankLostError) and "rank 1 cancelled" in str(error)


def test_thousand_connections_are_served_and_those_beyond_are_refused(start):
    switch = start(max_connections=1100, lease_ms=5000)
    idle = [RawRank(switch) for _ in range(1000)]
    assert reduce(connect(switch), values_of(2, 50_000)) == [None, None]

    more = [RawRank(switch) for _ in range(110)]
    header, _ = more[-1].receive()

    assert (header.kind, header.code) == (Kind.REFUSED, Code.FULL)
    for rank in idle + more:
        rank.close()
    wait_for(switch, lambda found: found["connections"] < 10)
