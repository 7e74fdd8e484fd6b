"""Pool of worker processes; a worker that dies loses only its current item."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from presage.errors import PresageError
from presage.system.processes.child_process import die_with_parent

Given = TypeVar("Given")
Answer = TypeVar("Answer")


def done_by_workers(
    do: Callable[[Given], Answer], given: Sequence[Given], workers: int
) -> Generator[tuple[int, Answer | PresageError]]:
    """Yield position and result of each item as it is done; an error if its process died.

    Processes are killed when the iterator is closed, or is interrupted, before its end.
    """
    left = deque(enumerate(given))
    at_work: dict[Connection, tuple[SpawnProcess, int]] = {}
    ending: list[SpawnProcess] = []
    try:
        while left or at_work:
            while left and len(at_work) < workers:
                pipe, process = _started(do)
                at_work[pipe] = process, _give(pipe, left)
            ready = wait(list(at_work))
            for pipe in [one for one in at_work if one in ready]:
                process, position = at_work.pop(pipe)
                answer: Answer | PresageError
                try:
                    answer = pipe.recv()
                except (EOFError, ConnectionError):
                    process.join()
                    answer = PresageError(_death(process))
                else:
                    if left:
                        at_work[pipe] = process, _give(pipe, left)
                    else:
                        pipe.close()  # it ends
                        ending.append(process)
                yield position, answer
    finally:
        for process, _ in at_work.values():
            process.kill()
            process.join()
        for process in ending:  # else they are zombies until another process starts
            process.join()


def _give(pipe: Connection, left: deque[tuple[int, Given]]) -> int:
    position, one = left.popleft()
    with suppress(ConnectionError):  # it died; reading from the pipe fails then
        pipe.send(one)
    return position


def _started(do: Callable[[Given], Any]) -> tuple[Connection, SpawnProcess]:
    """Start a process with SIGINT blocked: Ctrl-C is handled by its parent."""
    context = get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_work, args=(its, do, os.getpid()), daemon=True)
    resource_tracker.ensure_running()  # else the start below does so, and unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    its.close()
    return mine, process


def _work(pipe: Connection, do: Callable[[Given], Any], parent_pid: int) -> None:
    if sys.platform == "linux":
        die_with_parent(parent_pid)
    with suppress(EOFError):
        while True:
            pipe.send(do(pipe.recv()))


def _death(process: SpawnProcess) -> str:
    status = process.exitcode or 0
    if status < 0:
        return (
            f"its process was killed by {signal.Signals(-status).name}, perhaps for lack of memory"
        )
    return f"its process ended with status {status}; see its output above"
