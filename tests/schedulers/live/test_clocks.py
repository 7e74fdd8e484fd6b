"""Wall clocks that jump by hours, for controller, agents, shims and jobs alike."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time

import pytest

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import all_faults

HOUR_S = 3600
# The machine's own clock is not ours to set: a library between the processes and the kernel adds
# seconds to CLOCK_REALTIME, as a file has them.
SHIFT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile long long *shift;
static int (*real)(clockid_t, struct timespec *);
__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("TEST_CLOCK"), O_RDONLY);
    shift = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    real = dlsym(RTLD_NEXT, "clock_gettime");
}
int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += *shift;
    return failed;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


@all_faults
def test_clocks_that_jump_by_hours_end_nothing_and_let_nobody_wait_longer(cluster):
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    source, library, clock = (cluster.folder / name for name in ("s.c", "s.so", "clock"))
    source.write_text(SHIFT)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    clock.write_bytes(struct.pack("q", 0))
    cluster.environment = {"LD_PRELOAD": str(library), "TEST_CLOCK": str(clock)}
    cluster.lease_s = 4.0
    cluster.up("n0")
    cluster.submit(cluster.job("long", 200, 0.05, 10), cluster.job("waits", 5))
    cluster.runs("long")

    for hours in (5, -20, 100):
        with clock.open("r+b") as file:
            file.write(struct.pack("q", hours * HOUR_S))
        time.sleep(2)
        if hours < 0:
            cluster.kill("controller")
            cluster.controller()
            cluster.connected("n0")
        found = cluster.all()
        assert found.nodes[0].heard_s < HOUR_S / 2
        assert cluster.status("waits").waited_s < HOUR_S / 2
        assert 0 <= cluster.status("long").elapsed_s < HOUR_S / 2

    assert cluster.over("long", "waits") == {"long": pb.FINISHED, "waits": pb.FINISHED}
    assert cluster.status("long").ended_unix_s > time.time() + 50 * HOUR_S  # it did jump
    cluster.check(run_once=["long", "waits"])
