"""Freed memory is kept while large requests come, and given back once they do not."""

from __future__ import annotations

import asyncio

from presage.serving import malloc
from presage.serving.malloc import FreedMemory


def test_memory_is_given_back_once_after_the_last_large_request(monkeypatch):
    monkeypatch.setattr(malloc, "QUIET_S", 0.2)
    given_back: list[float] = []

    async def main() -> float:
        loop = asyncio.get_running_loop()
        freed = FreedMemory(lambda: given_back.append(loop.time()))
        for _ in range(5):
            freed.used()
            await asyncio.sleep(0.05)
        last_s = loop.time() - 0.05
        await asyncio.sleep(0.6)
        freed.used()
        freed.close()
        await asyncio.sleep(0.4)
        return last_s

    last_s = asyncio.run(main())
    assert len(given_back) == 1
    assert given_back[0] >= last_s + 0.19
