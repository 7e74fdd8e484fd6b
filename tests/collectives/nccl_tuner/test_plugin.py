"""Tuner plugin, called as NCCL calls it: what it does to the costs of algorithms."""

from __future__ import annotations

import ctypes
import timeit

import numpy as np
import pytest

from presage.collectives.core.view import JobView
from presage.collectives.nccl_tuner.build import TABLE_VARIABLE, tuner_environment, tuner_plugin
from presage.collectives.table.writer import DecisionTable
from tests.collectives.table.programs import needs_compiler

pytestmark = needs_compiler

TREE, RING, DIRECT, CHAIN, NVLS, NVLS_TREE, PAT = range(7)
BROADCAST, ALL_GATHER, ALL_REDUCE = 0, 2, 4
IGNORED = -1.0
SIZE, INT, POINTER = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
LOG = ctypes.CFUNCTYPE(None, INT, ctypes.c_ulong, ctypes.c_char_p, INT, ctypes.c_char_p)


class Tuner(ctypes.Structure):
    """NCCL's ncclTuner_v4_t."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("init", ctypes.CFUNCTYPE(INT, SIZE, SIZE, LOG, ctypes.POINTER(POINTER))),
        (
            "get",
            ctypes.CFUNCTYPE(
                INT, POINTER, INT, SIZE, INT, POINTER, INT, INT, INT, ctypes.POINTER(INT)
            ),
        ),
        ("destroy", ctypes.CFUNCTYPE(INT, POINTER)),
    ]


class Communicator:
    """Communicator with a tuner, as NCCL uses it."""

    def __init__(self, nodes=2):
        self.logged: list[tuple[int, bytes]] = []
        self._log = LOG(lambda level, flags, file, line, text: self.logged.append((level, text)))
        library = ctypes.CDLL(str(tuner_plugin()))
        self.tuner = Tuner.in_dll(library, "ncclTunerPlugin_v4")
        self.context = POINTER()
        assert self.tuner.init(16, nodes, self._log, ctypes.byref(self.context)) == 0

    def costs_of(self, costs, function=ALL_REDUCE):
        """Return the costs after the plugin has seen them."""
        found = np.array(costs, np.float32)
        channels = INT(-7)
        status = self.tuner.get(
            self.context, function, 1 << 20, 1, found.ctypes.data, *found.shape, 0,
            ctypes.byref(channels),
        )  # fmt: skip
        assert status == 0 and channels.value == -7
        return found

    def choice(self, costs, function=ALL_REDUCE):
        """Return the algorithm of the least cost that is not ignored, as NCCL chooses it."""
        found = self.costs_of(costs, function)
        found[found < 0] = np.inf
        return int(np.argmin(found)) // found.shape[1]

    def close(self):
        assert self.tuner.destroy(self.context) == 0


@pytest.fixture
def table(tmp_path, monkeypatch):
    with DecisionTable.create("job", 0, folder=tmp_path) as found:
        for name, value in tuner_environment(found).items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def communicator(table):
    found = Communicator()
    yield found
    found.close()


def costs(algorithms=7, **other):
    """Return costs where ring is the best; only the simple protocol works on switches."""
    found = np.full((algorithms, 3), 9.0, np.float32)
    found[RING] = [7.0, 6.0, 5.0]
    found[[DIRECT, CHAIN], :2] = IGNORED
    if algorithms > NVLS:
        found[NVLS, :2] = IGNORED
    for name, value in other.items():
        found[globals()[name]] = value
    return found


def test_plugin_is_found_by_its_symbol_and_name(communicator):
    assert communicator.tuner.name == b"presage"
    assert communicator.logged[0][0] == 3


def test_i3_allowed_all_reduce_is_chosen_on_the_switch(table, communicator):
    table.publish(JobView(1, 10, b"\x01\x02\x03"))
    chosen = []
    for number in range(8, 15):
        table.start(number)
        chosen.append(communicator.choice(costs()))

    assert chosen == [RING, RING, DIRECT, RING, DIRECT, RING, RING]


def test_i4_denied_all_reduce_does_not_choose_the_switch_even_if_it_is_cheapest(
    table, communicator
):
    table.publish(JobView(1, 0, b"\x02"))
    cheap = costs(DIRECT=0.1, CHAIN=0.2, NVLS=0.3)

    found = communicator.costs_of(cheap)

    assert (found[[DIRECT, CHAIN, NVLS]] == IGNORED).all()
    others = [TREE, RING, NVLS_TREE, PAT]
    assert (found[others] == cheap[others]).all()


def test_allowed_all_reduce_keeps_what_nccl_ignores(table, communicator):
    table.publish(JobView(1, 0, b"\x01"))
    found = communicator.costs_of(costs(CHAIN=IGNORED))

    assert found[DIRECT].tolist() == [IGNORED, IGNORED, 0]
    assert (found[CHAIN] == IGNORED).all()
    assert found[RING].tolist() == [7, 6, 5]


def test_i6_ranks_with_different_costs_choose_the_same_switch_algorithm(table, communicator):
    table.publish(JobView(1, 0, b"\x01"))
    random = np.random.default_rng(0)
    for _ in range(50):
        mine = random.uniform(1, 100, (7, 3)).astype(np.float32)
        mine[[DIRECT, CHAIN], :2] = IGNORED
        assert communicator.choice(mine) == DIRECT
        mine[DIRECT] = IGNORED
        assert communicator.choice(mine) == CHAIN


def test_communicator_without_switches_is_unchanged(table, communicator):
    table.publish(JobView(1, 0, b"\x01"))
    plain = costs(DIRECT=IGNORED, CHAIN=IGNORED, NVLS=IGNORED)

    assert (communicator.costs_of(plain) == plain).all()


@pytest.mark.parametrize("function", [BROADCAST, ALL_GATHER, 1, 3, 5])
def test_other_collectives_do_not_use_the_switch(table, communicator, function):
    table.publish(JobView(1, 0, b"\x01"))
    assert communicator.choice(costs(DIRECT=0.1), function) == RING


@pytest.mark.parametrize("nodes", [1, 2])
def test_nvls_counts_as_the_switch_between_nodes_only(table, nodes):
    table.publish(JobView(1, 0, b"\x02"))
    communicator = Communicator(nodes)
    expected = NVLS if nodes == 1 else RING
    assert communicator.choice(costs(NVLS=0.1)) == expected
    communicator.close()


@pytest.mark.parametrize("algorithms", [4, 6, 7, 9])
def test_cost_tables_of_other_versions_of_nccl(table, communicator, algorithms):
    table.publish(JobView(1, 0, b"\x01"))
    assert communicator.choice(costs(algorithms)) == DIRECT


def test_only_the_switch_is_possible_and_not_allowed(table, communicator):
    only = np.full((7, 3), IGNORED, np.float32)
    only[CHAIN, 2] = 4.0

    assert (communicator.costs_of(only) == only).all()
    assert b"can only use the switch" in communicator.logged[-1][1]


@pytest.mark.parametrize("value", [None, "", "/no/such/table"])
def test_i4_without_a_table_the_switch_is_not_used(monkeypatch, value):
    monkeypatch.delenv(TABLE_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(TABLE_VARIABLE, value)
    communicator = Communicator()

    assert communicator.choice(costs(DIRECT=0.1)) == RING
    level, text = communicator.logged[0]
    assert level == 2 and b"no switch is used" in text
    communicator.close()


def test_i4_closed_table_allows_nothing_and_is_reported_once(table, communicator):
    table.publish(JobView(1, 0, b"\x01"))
    assert communicator.choice(costs()) == DIRECT
    table.close()

    assert [communicator.choice(costs()) for _ in range(3)] == [RING] * 3
    assert sum(b"closed or damaged" in text for _, text in communicator.logged) == 1


def test_communicators_read_the_same_table(table):
    communicators = [Communicator() for _ in range(3)]
    for epoch in range(1, 30):
        table.publish(JobView(epoch, 0, bytes([epoch % 4])))
        assert {c.choice(costs()) for c in communicators} == {DIRECT if epoch % 2 else RING}
    for communicator in communicators:
        communicator.close()


def test_decision_takes_less_than_five_microseconds(table, communicator, capsys):
    table.publish(JobView(1, 0, b"\x01" * 4096))
    mine, channels = costs(), INT(0)
    address, channel = mine.ctypes.data, ctypes.byref(channels)

    def call():
        communicator.tuner.get(
            communicator.context, ALL_REDUCE, 1 << 20, 1, address, 7, 3, 0, channel
        )

    found_us = min(timeit.repeat(call, number=5000, repeat=9)) / 5000 * 1e6
    with capsys.disabled():
        print(f"\ndecision of the plugin, called from Python: {found_us:.2f} us")
    assert found_us < 5
