"""Freed memory is retained during large requests and returned to the system afterwards."""

from __future__ import annotations

import asyncio
import ctypes
import subprocess
import sys

import pytest

from presage.serving.admission import malloc
from presage.serving.admission.malloc import MemoryTrimmer
from tests.support.waiting import async_stays_true, async_wait_until


def test_memory_is_returned_once_after_the_last_large_request(monkeypatch):
    monkeypatch.setattr(malloc, "IDLE_S", 0.2)
    given_back: list[float] = []

    async def main() -> float:
        loop = asyncio.get_running_loop()
        freed = MemoryTrimmer(lambda: given_back.append(loop.time()))
        for _ in range(5):
            freed.trim_when_idle()
            await asyncio.sleep(0.05)
        last_s = loop.time() - 0.05
        await async_wait_until(lambda: given_back)
        freed.trim_when_idle()
        freed.close()
        assert await async_stays_true(lambda: len(given_back) == 1, 0.4)
        return last_s

    last_s = asyncio.run(main())
    assert len(given_back) == 1
    assert given_back[0] >= last_s + 0.19


def test_memory_of_unread_requests_is_returned_while_more_arrive(monkeypatch):
    monkeypatch.setattr(malloc, "SOON_S", 0.05)
    given_back: list[int] = []

    async def main() -> None:
        freed = MemoryTrimmer(lambda: given_back.append(1))
        for _ in range(30):
            freed.trim_soon()
            await asyncio.sleep(0.02)
        freed.close()

    asyncio.run(main())
    assert 2 <= len(given_back) <= 12


THREADS = """
import ctypes, threading
from presage.serving.admission.malloc import tune_malloc
tune_malloc()
libc, together = ctypes.CDLL(None), threading.Barrier(12)
libc.malloc.restype = ctypes.c_void_p
def allocate():
    together.wait()
    for _ in range(100):
        libc.malloc(ctypes.c_size_t(1000))
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(12)]
[one.start() for one in threads]
[one.join() for one in threads]
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="another libc")
def test_threads_share_two_arenas():
    said = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, check=True)
    assert said.stdout.count(b"<heap nr=") <= 2
