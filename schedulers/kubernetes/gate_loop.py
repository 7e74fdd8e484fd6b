"""The gate at work: look, decide, write, and look again when something has changed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from presage.schedulers.kubernetes.cache import Cache
from presage.schedulers.kubernetes.gate import Gate
from presage.schedulers.kubernetes.refusals import said
from presage.schedulers.kubernetes.writer import Writer
from presage.schedulers.kubernetes.writes import Say, Write
from presage.serving.log import log

_TOGETHER_S = 0.05  # changes that come so soon after another are looked at with it
_RETRY_S = 1.0  # after a write that was not done
_LOOK_S = 0.5  # whether to stop


def run_gate(
    gate: Gate,
    cache: Cache,
    writer: Writer,
    stopping: threading.Event,
    *,
    clock: Callable[[], float] = time.time,
) -> None:
    """Until it is to stop."""
    while not stopping.is_set():
        began_s = time.monotonic()
        snapshot = cache.snapshot()
        step = gate.step(snapshot, clock())
        took_s = time.monotonic() - began_s
        done = _written(writer, step.writes, stopping)
        if done and any(not isinstance(write, Say) for write in step.writes):
            continue
        again_s = min(step.again_s, clock() + _RETRY_S) if not done else step.again_s
        while not stopping.is_set() and clock() < again_s:
            if cache.wait(snapshot.version, max(0.0, min(_LOOK_S, again_s - clock()))):
                break
        stopping.wait(max(_TOGETHER_S, took_s))  # half of a processor at most


def _written(writer: Writer, writes: Iterable[Write], stopping: threading.Event) -> bool:
    """Whether all was done. Of what was not, the next look decides."""
    for write in writes:
        if stopping.is_set():
            return False
        try:
            if not writer.write(write):
                return False
        except (ApiException, HTTPError) as error:
            log(logging.WARNING, "not written", error=said(error))
            return False
    return True
