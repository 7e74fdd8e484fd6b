"""Tables of decisions: what readers in Python and C see, and that they see it whole."""

from __future__ import annotations

import random
import time

import pytest

from presage.collectives.core.view import RING_ONLY, JobView
from presage.collectives.table.errors import TableError, TableUnavailableError
from presage.collectives.table.layout import SEQUENCE_WORD, table_path
from presage.collectives.table.reader import TableReader
from presage.collectives.table.writer import DecisionTable
from tests.collectives.table.programs import (
    compile_c,
    is_consistent,
    needs_compiler,
    run_c,
    start_owner,
)

LOOKUP = """
int main(int count, char **words) {
    presage_inc_table table;
    if (!presage_inc_open(&table, words[1])) return printf("error %d", errno), 0;
    printf("%llu", (unsigned long long)presage_inc_next_number(&table));
    for (int i = 2; i < count; i++)
        printf(" %d", presage_inc_is_allowed(&table, strtoull(words[i], NULL, 10)));
    presage_inc_close(&table);
}
"""

WATCH = """
#include <time.h>
int main(int count, char **words) {
    presage_inc_table table;
    long views = 0, torn = 0;
    uint64_t last = 0;
    time_t end = time(NULL) + (count > 2 ? atoi(words[2]) : 1);
    if (!presage_inc_open(&table, words[1])) return 1;
    while (time(NULL) < end) {
        int first = presage_inc_is_allowed(&table, presage_inc_next_number(&table));
        if (first == PRESAGE_INC_UNAVAILABLE) return 2;
        const presage_inc_memory *copy = table.copy;
        if (copy->epoch == last) continue;
        views++;
        torn += copy->epoch < last || copy->first_number != 3 * copy->epoch ||
                copy->length != 1 + copy->epoch * 7 % 4096;
        for (uint32_t i = 0; i < copy->length; i++)
            torn += copy->decisions[i] != copy->epoch % 251;
        last = copy->epoch;
    }
    printf("%ld %ld", views, torn);
    return 0;
}
"""


@pytest.fixture
def table(tmp_path):
    with DecisionTable.create("job", 0, folder=tmp_path, capacity=4096) as found:
        yield found


@pytest.fixture
def reader(table):
    with TableReader(table.path) as found:
        yield found


@pytest.mark.parametrize("seed", range(5))
def test_lookups_are_those_of_the_view(table, reader, seed):
    choose = random.Random(seed)
    for epoch in range(1, 40):
        first = choose.randrange(2**63 - 5000)
        view = JobView(epoch, first, choose.randbytes(choose.randrange(200)))
        table.publish(view)

        assert reader.view == table.view == view
        for number in (0, first - 1, 2**63 - 1, *range(first, first + 200)):
            assert reader.is_allowed(number) == view.is_allowed(number) == table.is_allowed(number)


def test_table_without_a_view_allows_nothing(table, reader):
    assert reader.view == RING_ONLY and not reader.is_allowed(0)
    assert reader.next_number == 0
    table.start(7)
    assert reader.next_number == 7


@needs_compiler
def test_reader_in_c_decides_as_the_view(table, tmp_path):
    program = compile_c(tmp_path, LOOKUP)
    table.publish(JobView(5, 100, bytes([1, 2, 3, 0, 8, 5])))
    table.start(103)

    words = run_c(program, table.path, 99, *range(100, 107), 2**64 - 1)

    assert words == ["103", "0", "1", "0", "1", "0", "0", "1", "0", "0"]


def test_view_beyond_the_capacity_is_rejected_and_the_old_one_stays(table, reader):
    table.publish(JobView(1, 0, b"\x01" * 4096))
    with pytest.raises(ValueError, match="4097 AllReduces; 4096 fit"):
        table.publish(JobView(2, 0, b"\x01" * 4097))
    assert reader.view.epoch == 1


@pytest.mark.parametrize("view", [JobView(-1), JobView(2**64), JobView(1, -5, b"\x01")])
def test_view_with_an_invalid_number_is_rejected_and_the_old_one_stays(table, reader, view):
    table.publish(JobView(1, 0, b"\x01"))
    with pytest.raises(ValueError, match="is invalid"):
        table.publish(view)
    with pytest.raises(ValueError):
        table.start(-1)
    assert reader.is_allowed(0) and table.is_allowed(0)


def test_i6_concurrent_reader_never_sees_parts_of_two_views(tmp_path):
    owner = start_owner(tmp_path, "publishes")
    views, end_s = 0, time.monotonic() + 2
    try:
        with TableReader.find("job", 0, folder=tmp_path) as reader:
            last = 0
            while time.monotonic() < end_s:
                view = reader.view
                assert is_consistent(view) and view.epoch >= last
                views, last = views + (view.epoch > last), view.epoch
                assert reader.next_number >= 3 * (last - 1)
    finally:
        owner.kill()
        owner.wait()
    assert views > 20


@needs_compiler
def test_i6_concurrent_reader_in_c_never_sees_parts_of_two_views(tmp_path):
    program = compile_c(tmp_path, WATCH)
    owner = start_owner(tmp_path, "publishes")
    try:
        views, torn = run_c(program, table_path("job", 0, tmp_path), 3)
    finally:
        owner.kill()
        owner.wait()
    assert int(views) > 20 and torn == "0"


@pytest.mark.parametrize("place", [16, 24, 32, 40, 64, 70])
def test_content_with_a_wrong_checksum_is_not_used(table, place):
    table.publish(JobView(3, 4, b"\x01" * 32))
    memory = table.memory
    memory[place] ^= 1  # as if a store were not visible yet

    with pytest.raises(TableUnavailableError):
        TableReader(table.path)
    memory[place] ^= 1
    with TableReader(table.path) as reader:
        assert reader.view.epoch == 3


@needs_compiler
def test_reader_in_c_uses_no_torn_or_closed_table(table, tmp_path):
    program = compile_c(tmp_path, LOOKUP)
    table.publish(JobView(3, 0, b"\x01" * 32))
    table.memory[64] ^= 2
    assert run_c(program, table.path, 0) == ["0", "-1"]
    table.memory[64] ^= 2
    table.words[SEQUENCE_WORD] |= 1
    assert run_c(program, table.path, 0) == ["0", "-1"]
    table.publish(JobView(4, 0, b"\x01"))
    assert run_c(program, table.path, 0) == ["0", "1"]
    kept = tmp_path / "kept"
    kept.hardlink_to(table.path)
    table.close()
    assert run_c(program, kept, 0) == ["0", "-1"]


def test_closed_table_is_gone_and_its_readers_know(table, reader):
    table.publish(JobView(3, 0, b"\x01"))
    table.close()
    table.close()

    assert not table.path.exists()
    with pytest.raises(TableUnavailableError, match="closed"):
        reader.is_allowed(0)
    with pytest.raises(TableUnavailableError, match="there is no table"):
        TableReader(table.path)
    with pytest.raises(TableError, match="closed"):
        table.publish(JobView(4))
    with pytest.raises(TableError, match="closed"):
        table.start(1)
    assert table.is_allowed(0)  # the agreed view of the process itself
