"""Laws of the ring: the sum on all workers, exactly 2(N - 1) sends, and closing at any time."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import ElasticError
from presage.training.synchronous_accumulation import Flags, Ring, RingClosedError
from tests.support.slow_tests import examples


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


def make_rings(size, generation=1):
    pairs = [tcp_pair() for _ in range(size)]  # from rank i to rank i + 1
    return [Ring(i, size, generation, pairs[i][0], pairs[i - 1][1]) for i in range(size)]


def on_all(rings, function):
    with ThreadPoolExecutor(len(rings)) as pool:
        return list(pool.map(function, rings))


@settings(max_examples=examples(40))
@given(st.integers(2, 6), st.integers(0, 70), st.integers(0, 2**32), st.data())
def test_s6_ring_all_reduce_sums_with_exactly_two_n_minus_one_sends(size, length, seed, data):
    values = np.random.default_rng(seed).integers(-99, 99, (size, length)).astype(np.float32)
    flags = [
        Flags(data.draw(st.booleans()), data.draw(st.booleans()), data.draw(st.integers(0, 1)) << i)
        for i in range(size)
    ]
    rings, buffers = make_rings(size), values.copy()

    found = on_all(rings, lambda ring: ring.all_reduce(buffers[ring.rank], 0, flags[ring.rank]))

    assert (buffers == values.sum(0)).all()
    assert [ring.sends for ring in rings] == [2 * (size - 1)] * size
    union = Flags()
    for one in flags:
        union = union.union(one)
    assert found == [union] * size
    for ring in rings:
        ring.close()


def test_s6_received_chunks_are_added_in_the_first_half_and_replace_in_the_second(monkeypatch):
    added: list[int] = []
    add = np.add

    def counted(*args, **more):
        added.append(1)
        return add(*args, **more)

    monkeypatch.setattr("presage.training.synchronous_accumulation.np.add", counted)
    rings = make_rings(3)
    buffers = np.ones((3, 9), np.float32)

    on_all(rings, lambda ring: ring.all_reduce(buffers[ring.rank], 0, Flags()))

    assert len(added) == 3 * (3 - 1)
    assert (buffers == 3).all()
    for ring in rings:
        ring.close()


def test_all_workers_have_the_same_bits_for_buffers_larger_than_a_sockets():
    rings = make_rings(3)
    buffers = np.random.default_rng(1).normal(size=(3, 1_500_001)).astype(np.float32)
    expected = buffers.sum(0)

    on_all(rings, lambda ring: ring.all_reduce(buffers[ring.rank], 0, Flags()))

    assert buffers[0].tobytes() == buffers[1].tobytes() == buffers[2].tobytes()
    np.testing.assert_allclose(buffers[0], expected, rtol=1e-5, atol=1e-5)
    for ring in rings:
        ring.close()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_closing_one_ring_ends_the_sum_on_all_workers(size):
    rings = make_rings(size)

    def take_part(ring):
        if ring.rank == 0:
            ring.close()
            return "closed"
        with pytest.raises(RingClosedError):
            ring.all_reduce(np.ones(100_000, np.float32), 0, Flags())
        ring.close()
        return "noticed"

    assert on_all(rings, take_part) == ["closed"] + ["noticed"] * (size - 1)


def test_another_thread_can_close_a_ring_that_waits():
    rings = make_rings(2)
    timer = threading.Timer(0.05, rings[0].close)
    timer.start()

    with pytest.raises(RingClosedError):
        rings[0].all_reduce(np.ones(10, np.float32), 0, Flags())  # the other does not take part

    timer.join()
    with pytest.raises(RingClosedError):
        rings[0].all_reduce(np.ones(10, np.float32), 0, Flags())
    rings[1].close()


def test_a_neighbour_at_another_step_is_an_error_and_not_a_wrong_sum():
    rings = make_rings(2)

    def take_part(ring):
        with pytest.raises(ElasticError, match="previous worker of the ring is at generation 1"):
            ring.all_reduce(np.ones(10, np.float32), ring.rank, Flags())
        return ring.close()

    on_all(rings, take_part)


def test_s6_a_ring_has_at_least_two_workers():
    with pytest.raises(ElasticError, match="2 to 64 workers, not 1"):
        Ring(0, 1, 1, *tcp_pair())
