"""``presage`` whose arbiter kills itself at one step: PRESAGE_TEST_CRASH is POINT:NUMBER.

Points: ``before`` the journal has a step, ``after`` that and before its messages are sent, ``part``
once the first message is on its way, ``sent`` once all are.
"""

from __future__ import annotations

import asyncio
import os
import signal

from presage.__main__ import main
from presage.collectives.arbiter.journal import Journal
from presage.collectives.arbiter.runtime.controller_steps import ControllerSteps

POINTS = ("before", "after", "part", "sent")
FLUSH_S = 0.02  # in which a queued message leaves the process


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install(point: str, number: int) -> None:
    write, deliver = Journal.write, ControllerSteps.deliver
    count = 0

    def counted_write(self, text):
        nonlocal count
        count += 1
        if point == "before" and count == number:
            die()
        write(self, text)
        if point == "after" and count == number:
            die()

    def counted_deliver(self, messages):
        rows = tuple(messages)
        if point not in ("part", "sent") or count < number or not rows:
            deliver(self, rows)
            return
        deliver(self, rows[:1] if point == "part" else rows)
        asyncio.get_running_loop().call_later(FLUSH_S, die)

    patched: list[tuple[type, str, object]] = [
        (Journal, "write", counted_write),
        (ControllerSteps, "deliver", counted_deliver),
    ]
    for owner, name, function in patched:
        setattr(owner, name, function)


if __name__ == "__main__":
    chosen, _, text = os.environ["PRESAGE_TEST_CRASH"].partition(":")
    install(chosen, int(text))
    main()
