"""Access log: whole lines, written in time, and no blocking by a slow reader."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.serving.server.access_log import (
    ATOMIC_WRITE_BYTES,
    MAX_PENDING_BATCHES,
    AccessLog,
    EndedCall,
    join_lines,
)
from tests.support.waiting import async_wait_until, wait_until

CALL: dict[str, Any] = {
    "method": "Predict", "code": "OK", "seconds": 0.0012345, "rows": 1, "request_bytes": 7,
    "request_id": "r-1", "ended_unix_s": 1.5,
}  # fmt: skip


@given(st.lists(st.text("abc", max_size=ATOMIC_WRITE_BYTES + 10).map(lambda text: text + "\n")))
def test_chunks_are_whole_lines_in_order_and_fit_into_a_write(lines):
    found = list(join_lines(lines))
    assert "".join(found) == "".join(lines)
    assert all(piece.endswith("\n") for piece in found)
    assert all(len(piece) <= ATOMIC_WRITE_BYTES or piece.count("\n") == 1 for piece in found)
    for piece, following in pairwise(found):  # none that would have held more
        assert len(piece) + following.index("\n") + 1 > ATOMIC_WRITE_BYTES


def test_lines_come_soon_and_in_order(tmp_path):
    path = tmp_path / "log"

    async def main() -> None:
        with path.open("w", buffering=1) as stream:
            log = AccessLog(stream.write)
            for i in range(100):
                log.record(EndedCall(client=f'"{i}\u00e4\n', **CALL))
            await async_wait_until(lambda: len(path.read_text().splitlines()) == 100)
            log.record(EndedCall(client="last", **CALL))
            log.close()

    asyncio.run(main())
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["client"] for row in rows] == [*(f'"{i}\u00e4\n' for i in range(100)), "last"]
    assert rows[0]["ms"] == pytest.approx(1.234, abs=1e-3)


@pytest.mark.parametrize("client", ["reads nothing", "has left"])
def test_a_reader_that_stops_reading_does_not_block_the_server(client):
    reader, writer = os.pipe()
    dropped: list[int] = []

    async def main(log: AccessLog) -> None:
        for _ in range(MAX_PENDING_BATCHES + 2):
            for _ in range(ATOMIC_WRITE_BYTES // 8):  # more than a pipe takes, after some times
                log.record(EndedCall(client="a", **CALL))
            log.flush()
            await asyncio.sleep(0.001)

    before = set(threading.enumerate())
    log = AccessLog(lambda text: os.write(writer, text.encode()), dropped.append)
    (thread,) = set(threading.enumerate()) - before
    if client == "has left":
        os.close(reader)
    begin_s = time.monotonic()
    asyncio.run(main(log))
    log.close(wait_s=0.1)
    assert time.monotonic() - begin_s < 10
    assert sum(dropped) > 0
    if client == "reads nothing":
        os.close(reader)  # which ends the write that waits

    def has_ended() -> bool:
        log.close(wait_s=0.1)
        return not thread.is_alive()

    wait_until(has_ended)
    os.close(writer)
