"""Contract of both aggregators: sums."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from presage.collectives.switch.client import statistics
from presage.collectives.switch.errors import RefusedError
from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.process import SwitchProcess
from presage.collectives.switch.protocol import Code, Kind
from tests.collectives.switch.ranks import (
    RawRank,
    connect,
    connect_one,
    ordered_sum,
    reduce,
    values_of,
    wait_for,
)

CHUNK = 16  # values, in the fixture's switch


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_i10_switch_sums_buffers_of_all_sizes_in_the_order_of_ranks(switch, ranks):
    clients = connect(switch, ranks=ranks)
    sizes = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 10 * CHUNK + 7, 0, 1000]

    for number, size in enumerate(sizes):
        buffers = values_of(ranks, size, seed=number)
        expected = ordered_sum(buffers)

        assert reduce(clients, buffers, number) == [None] * ranks
        for buffer in buffers:
            assert buffer.tobytes() == expected.tobytes()


def test_sums_have_the_same_bits_on_both_aggregators_and_in_every_run():
    found = set()
    for implementation in ("python", "auto", "auto"):
        with SwitchProcess(SwitchOptions(chunk_bytes=256), implementation=implementation) as switch:
            buffers = values_of(4, 5000)
            assert reduce(connect(switch, ranks=4), buffers) == [None] * 4
            found |= {buffer.tobytes() for buffer in buffers}

    assert len(found) == 1


def test_infinities_and_shapes_survive(switch):
    buffers = [np.full((3, 40), value, np.float32) for value in (np.inf, 1.0)]
    buffers[1][1] = -np.inf

    assert reduce(connect(switch), buffers) == [None, None]
    for buffer in buffers:
        assert np.isposinf(buffer[0]).all() and np.isnan(buffer[1]).all()


def test_i10_huge_buffer_passes_through_bounded_memory(start):
    switch = start()
    buffers = values_of(2, 6_000_000)  # 24 MB each
    expected = ordered_sum(buffers)

    assert reduce(connect(switch), buffers, timeout_s=60) == [None, None]
    assert (buffers[0] == expected).all() and (buffers[1] == expected).all()
    slot_bytes = 16 * 3 * (64 << 10)
    program_bytes = (64 << 20) if switch.fallback_reason else (8 << 20)
    assert peak_bytes(switch) < slot_bytes + program_bytes


def peak_bytes(switch):
    status = Path(f"/proc/{switch.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def test_buffer_with_too_many_chunks_is_rejected(switch):
    rank = RawRank(switch, 0)
    rank.begin(1, 2**63)

    header, reason = rank.receive()

    assert (header.kind, header.code) == (Kind.REFUSED, Code.BAD_REQUEST)
    assert b"too many chunks" in reason
    assert rank.ends()


def test_slow_rank_delays_a_sum_without_harm(start):
    switch = start(lease_ms=5000)
    clients = connect(switch)
    buffers = values_of(2, 200_000)
    expected = ordered_sum(buffers)
    timer = threading.Timer(0.4, reduce, ([clients[1]], [buffers[1]]))
    timer.start()

    assert reduce([clients[0]], [buffers[0]]) == [None]
    timer.join()
    assert (buffers[0] == expected).all() and (buffers[1] == expected).all()


def test_rank_that_reads_slowly_gets_all_sums(start):
    switch = start(chunk_bytes=4096, window=4)
    client = connect_one(switch, 0)
    slow = RawRank(switch, 1, receive_bytes=4096)
    mine, theirs = values_of(2, 20 * 1024)
    expected = ordered_sum([mine, theirs])
    thread = threading.Thread(target=reduce, args=([client], [mine]))
    thread.start()
    slow.begin(1, len(theirs))
    payload, sums = theirs.tobytes(), b""
    for index in range(20):
        if index >= 4:
            sums += slow.receive()[1]
        slow.chunk(1, index, payload[index * 4096 : (index + 1) * 4096])
        time.sleep(0.005)
    while len(sums) < len(payload):
        sums += slow.receive()[1]
    thread.join()

    assert sums == expected.tobytes() == mine.tobytes()


def test_i10_two_jobs_are_summed_at_a_time_on_two_slots(start):
    switch = start(slots=2, lease_ms=5000)
    first, second = connect(switch, "first"), connect(switch, "second")
    held = values_of(2, 10)
    waiting = threading.Thread(target=reduce, args=(first[:1], held[:1]))
    waiting.start()
    wait_for(switch, lambda found: found["slots_in_use"] == 1)

    assert reduce(second, values_of(2, 100)) == [None, None]
    assert reduce(first[1:], held[1:]) == [None]
    waiting.join()
    assert (held[0] == held[1]).all()


def test_statistics_count_jobs_bytes_sums_and_refusals(switch, implementation):
    clients = connect(switch, "a/job:1", epoch=7)
    assert reduce(clients, values_of(2, 3 * CHUNK), number=4, epoch=7) == [None, None]
    (error,) = reduce(clients[:1], values_of(1, 1), number=5, epoch=6)
    assert isinstance(error, RefusedError)

    found = json.loads(statistics(switch.host, switch.port))

    assert found["implementation"] == implementation
    assert found["slots"] == 1 and found["slots_in_use"] == 0
    assert found["completed"] == 1 and found["sums"] == 3
    assert found["bytes_in"] > 2 * 3 * CHUNK * 4 and found["bytes_out"] > 2 * 3 * CHUNK * 4
    assert found["refusals"]["old_epoch"] == 1 and found["refusals"]["no_slot"] == 0
    assert found["jobs"] == [
        {
            "name": "a/job:1", "ranks": 2, "registered": 2, "epoch": 7, "settled": 5,
            "running": -1, "has_slot": False,
        }
    ]  # fmt: skip
