"""Checks of the number of connections: how often they take place."""

import asyncio
import time

from presage.serving.admission import connection_limits
from presage.serving.admission.connection_limits import Connections
from tests.support.waiting import async_wait_until


def test_a_check_that_took_long_does_not_suspend_the_limits(monkeypatch):
    """A check also takes long if no thread is free for it, or if the machine stalls."""
    monkeypatch.setattr(connection_limits, "_CHECK_S", 0.01)
    monkeypatch.setattr(connection_limits, "_MAX_CHECK_S", 0.05)
    checks = []

    def check():
        checks.append(time.monotonic())
        time.sleep(0.5)
        return 0

    async def main():
        bounded = Connections(lambda: 1)
        monkeypatch.setattr(bounded, "_has_many_files", lambda: True)
        monkeypatch.setattr(bounded, "enforce_limits", check)
        running = asyncio.create_task(bounded.run())
        await async_wait_until(lambda: len(checks) == 3)
        running.cancel()

    asyncio.run(main())
    assert checks[2] - checks[1] < 10.0
