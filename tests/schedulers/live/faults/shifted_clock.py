"""Wall clock that can be shifted for processes and their descendants."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

# Tests cannot set the clock of the machine: a preloaded library adds the seconds in a file to
# CLOCK_REALTIME.
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


def shift_library(folder: Path) -> Path:
    """Compile the library. Raises OSError or CalledProcessError without a compiler."""
    source, library = folder / "shift.c", folder / "shift.so"
    source.write_text(SHIFT)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


class ShiftedClock:
    """File with the seconds to add to the wall clock of processes with its environment."""

    def __init__(self, path: Path, library: Path) -> None:
        self._path = path
        self._path.write_bytes(struct.pack("q", 0))
        self.environment = {"LD_PRELOAD": str(library), "TEST_CLOCK": str(path)}

    def shift(self, seconds: int) -> None:
        """Set the clock ahead by a number of seconds."""
        with self._path.open("r+b") as file:
            file.write(struct.pack("q", seconds))
