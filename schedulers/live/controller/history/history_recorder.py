"""Task of the controller that samples the state of the cluster each minute."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.history.history_file import MINUTE_S, HistoryFile, Row
from presage.schedulers.live.controller.history.history_sample import Sampler
from presage.serving.server.log import log

T = TypeVar("T")


class _Controller(Protocol):
    def now_s(self) -> float: ...

    def read_in_thread(self, at: Callable[[Core, float], T]) -> Awaitable[T]: ...


class HistoryRecorder:
    """Recorder of samples; a failure of the disk costs samples, and nothing else.

    Parameters
    ----------
    clock : callable
        Returns the wall-clock time in seconds.
    """

    def __init__(
        self, controller: _Controller, file: HistoryFile, clock: Callable[[], float] = time.time
    ) -> None:
        self._controller, self._file, self._clock = controller, file, clock
        self._sampler = Sampler(controller.now_s())
        self._failure = ""

    async def run(self) -> None:
        """Record a sample at the beginning of each minute."""
        while True:
            await asyncio.sleep(MINUTE_S - self._clock() % MINUTE_S)
            try:
                await self.record()
            except Exception:  # a defect of the history must not end the controller
                log(logging.ERROR, "history: sample failed", traceback=True)

    async def record(self) -> None:
        """Record a sample now."""
        snapshot = await self._controller.read_in_thread(self._sampler.snapshot)
        sample = await asyncio.to_thread(snapshot.sample)
        # Rounded: a timer may end a little early.
        minute = round(self._clock() / MINUTE_S)
        try:
            await asyncio.to_thread(self._file.append, Row(minute, sample))
        except OSError as error:
            self._note(str(error.strerror or error))
        else:
            self._note("")

    def _note(self, failure: str) -> None:
        """Log a failure once, and its end."""
        if failure and not self._failure:
            log(logging.WARNING, "history: samples are not written", error=failure)
        elif self._failure and not failure:
            log(logging.INFO, "history: samples are written again")
        self._failure = failure
