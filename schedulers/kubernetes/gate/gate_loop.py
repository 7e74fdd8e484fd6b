"""The gate at work: look, decide, write, and look again when something has changed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from presage.schedulers.kubernetes.api.cache import Cache
from presage.schedulers.kubernetes.api.refusals import said
from presage.schedulers.kubernetes.gate.gang_gate import Gate
from presage.schedulers.kubernetes.gate.writer import Writer
from presage.schedulers.kubernetes.gate.writes import (
    Say,
    Version,
    Write,
    subject,
    takes_away,
    version_of,
)
from presage.serving.server.log import log

_TOGETHER_S = 0.05  # changes that come so soon after another are looked at with it
_RETRY_S = 1.0  # after a write that was refused, or not answered
_LOOK_S = 0.5  # whether to stop
_SO_S = 2.0  # an answer holds for the look that follows it


def run_gate(
    gate: Gate,
    cache: Cache,
    writer: Writer,
    stopping: threading.Event,
    *,
    clock: Callable[[], float] = time.time,
) -> None:
    """Until it is to stop."""
    refused: dict[Version, float] = {}  # when to try again, by the monotonic clock
    asked: dict[Version, float] = {}  # until when what was asked of it is taken to be so
    while not stopping.is_set():
        began_s = time.monotonic()
        snapshot = cache.snapshot()
        refused = {version: at_s for version, at_s in refused.items() if at_s > began_s}
        step = gate.step(snapshot, clock(), refused.keys())
        took_s = time.monotonic() - began_s
        asked = {version: until_s for version, until_s in asked.items() if until_s > began_s}
        doubtful = [
            write
            for write in step.writes
            if takes_away(write) and version_of(subject(write)) not in asked
        ]
        if doubtful:  # a watch may lag behind by what would have saved them
            _ask(writer, doubtful, refused, asked)
            continue
        reached = _write(writer, step.writes, stopping, refused)
        if reached and any(not isinstance(write, Say) for write in step.writes):
            continue
        again_s = step.again_s if reached and not refused else min(step.again_s, clock() + _RETRY_S)
        while not stopping.is_set() and clock() < again_s:
            if cache.wait(snapshot.version, max(0.0, min(_LOOK_S, again_s - clock()))):
                break
        stopping.wait(max(_TOGETHER_S, took_s))  # half of a processor at most


def _ask(
    writer: Writer,
    doubtful: Iterable[Write],
    refused: dict[Version, float],
    asked: dict[Version, float],
) -> None:
    for write in doubtful:
        version = version_of(subject(write))
        try:
            writer.look_again(write)
            asked[version] = time.monotonic() + _SO_S
        except (ApiException, HTTPError) as error:
            log(logging.WARNING, "nothing is taken away unseen", error=said(error))
            refused[version] = time.monotonic() + _RETRY_S


def _write(
    writer: Writer,
    writes: Iterable[Write],
    stopping: threading.Event,
    refused: dict[Version, float],
) -> bool:
    """Whether the API server was there, and what it refused; of that, the next look decides."""
    for write in writes:
        version = version_of(subject(write))
        if stopping.is_set():
            return False
        if version in refused:  # nor is said what was not done
            continue
        try:
            done = writer.write(write)
        except ApiException as error:
            log(logging.WARNING, "not written", error=said(error))
            done = False
        except HTTPError as error:
            log(logging.WARNING, "not written", error=said(error))
            return False
        if not done:
            refused[version] = time.monotonic() + _RETRY_S
    return True
