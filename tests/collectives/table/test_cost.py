"""Cost of a lookup, as a ratio to the least that the language needs."""

from __future__ import annotations

import timeit

from presage.collectives.core.view import JobView
from presage.collectives.table.reader import TableReader
from presage.collectives.table.writer import DecisionTable
from tests.collectives.table.programs import compile_c, needs_compiler, run_c

LOOKUPS = """
#include <time.h>
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}
int main(int count, char **words) {
    enum { CALLS = 2000000, TRIES = 9 };
    presage_inc_table table;
    uint64_t word = 0;
    volatile int found = 0;
    double floor = 1e9, lookup = 1e9;
    if (count < 2 || !presage_inc_open(&table, words[1])) return 1;
    for (int try = 0; try < TRIES; try++) {
        double start = now();
        for (uint64_t i = 0; i < CALLS; i++) found += (int)__atomic_load_n(&word, __ATOMIC_ACQUIRE);
        double middle = now();
        for (uint64_t i = 0; i < CALLS; i++) found += presage_inc_is_allowed(&table, i & 4095);
        double end = now();
        if (middle - start < floor) floor = middle - start;
        if (end - middle < lookup) lookup = end - middle;
    }
    printf("%.2f %.2f", floor / CALLS, lookup / CALLS);
    return 0;
}
"""


class Nothing:
    """Floor of a lookup in Python: a method that reads an attribute."""

    value = True

    def is_allowed(self, number):
        return self.value


def nanoseconds(function, number=5):
    calls = 20_000
    return min(timeit.repeat(lambda: function(number), number=calls, repeat=9)) / calls * 1e9


def test_lookup_in_python_takes_few_times_the_least_call(tmp_path, capsys):
    with DecisionTable.create("job", 0, folder=tmp_path) as table:
        table.publish(JobView(1, 0, b"\x01" * 4096))
        with TableReader(table.path) as reader:
            floor, found = nanoseconds(Nothing().is_allowed), nanoseconds(reader.is_allowed)
            own = nanoseconds(table.is_allowed)
    with capsys.disabled():
        print(f"\nlookup in Python: {found:.0f} ns by a reader, {own:.0f} ns by the owner; "
              f"least call {floor:.0f} ns")  # fmt: skip

    assert found < 10 * floor and own < 10 * floor
    assert max(found, own) < 5000  # bar of a decision


@needs_compiler
def test_lookup_in_c_takes_few_times_a_load(tmp_path, capsys):
    program = compile_c(tmp_path, LOOKUPS)
    with DecisionTable.create("job", 0, folder=tmp_path) as table:
        table.publish(JobView(1, 0, b"\x01" * 4096))
        floor, found = map(float, run_c(program, table.path))
    with capsys.disabled():
        print(f"\nlookup in C: {found:.2f} ns; a load {floor:.2f} ns")

    assert found < 15 * floor
