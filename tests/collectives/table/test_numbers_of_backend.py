"""Table of a rank that the backend publishes: it has the next number before each call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import AllreduceOptions

from presage.collectives.core.view import Reason
from presage.collectives.table.reader import TableReader
from presage.collectives.table.writer import DecisionTable
from presage.collectives.torch.arbiter_link import ArbiterLink
from presage.collectives.torch.collectives_of_group import DecidedAllReduce
from tests.collectives.torch.test_collective_queue import GroupOfOne


@pytest.fixture
def table(tmp_path):
    with DecisionTable.create("job", 0, folder=tmp_path) as made:
        yield made


@pytest.fixture
def link(table):
    connection: Any = SimpleNamespace()
    return ArbiterLink(connection, SimpleNamespace(), table)


@pytest.fixture
def reader(table):
    with TableReader(table.path) as found:
        yield found


def driver_at(number) -> Any:
    return SimpleNamespace(
        number=number, reason=Reason.IN_USE, skip=lambda: None,
        can_begin_at_once=lambda size: True, begin=lambda size, order: False,
    )  # fmt: skip


def decided_at(number, link) -> Any:
    ring: Any = lambda: "work"  # noqa: E731
    return DecidedAllReduce(
        driver_at(number), torch.ones(4), ring, divisor=1, order=1, arbiter=link
    )


def test_a_decided_allreduce_leaves_the_number_after_it(link, reader):
    assert reader.next_number == 0

    decided_at(7, link).start_at_once()

    assert reader.next_number == 8


def test_a_counted_ring_leaves_the_number_after_it(link, reader):
    group: Any = GroupOfOne("ring", arbiter=link, driver=driver_at(9))

    assert group.allreduce([torch.ones(4)], AllreduceOptions()) == "ring"

    assert reader.next_number == 10


def test_a_closed_table_stops_no_allreduce(link, table):
    table.close()

    assert decided_at(7, link).start_at_once() == "work"
