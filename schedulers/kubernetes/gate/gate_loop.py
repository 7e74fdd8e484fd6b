"""Reconcile loop of the gate: take a snapshot, decide, write, and wait for a change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from presage.schedulers.kubernetes.api.api_errors import describe_error
from presage.schedulers.kubernetes.api.cache import Cache
from presage.schedulers.kubernetes.gate.gang_gate import Gate
from presage.schedulers.kubernetes.gate.writer import Writer
from presage.schedulers.kubernetes.gate.writes import (
    EmitEvent,
    ObjectVersion,
    Write,
    involved_object,
    is_destructive,
    object_version,
)
from presage.serving.server.log import log

_BATCH_S = 0.05  # changes within this time are handled in one pass
_RETRY_S = 1.0  # after a write that failed
_STOP_POLL_S = 0.5  # interval at which the stop event is checked
_VERIFIED_S = 2.0  # how long a verification is valid: for the pass that follows it


def run_gate(
    gate: Gate,
    cache: Cache,
    writer: Writer,
    stopping: threading.Event,
    *,
    clock: Callable[[], float] = time.time,
) -> None:
    """Run the gate until ``stopping`` is set."""
    refused: dict[ObjectVersion, float] = {}  # when to retry, by the monotonic clock
    verified: dict[ObjectVersion, float] = {}  # until when, by the monotonic clock
    while not stopping.is_set():
        began_s = time.monotonic()
        snapshot = cache.snapshot()
        refused = {version: at_s for version, at_s in refused.items() if at_s > began_s}
        step = gate.step(snapshot, clock(), refused.keys())
        took_s = time.monotonic() - began_s
        verified = {version: until_s for version, until_s in verified.items() if until_s > began_s}
        unverified = [
            write
            for write in step.writes
            if is_destructive(write) and object_version(involved_object(write)) not in verified
        ]
        if unverified:  # a delayed watch may miss changes that make them unnecessary
            _verify(writer, unverified, refused, verified)
            continue
        is_reachable = _write_all(writer, step.writes, stopping, refused)
        if is_reachable and any(not isinstance(write, EmitEvent) for write in step.writes):
            continue
        next_pass_s = step.next_pass_s
        if refused or not is_reachable:
            next_pass_s = min(next_pass_s, clock() + _RETRY_S)
        while not stopping.is_set() and clock() < next_pass_s:
            timeout_s = max(0.0, min(_STOP_POLL_S, next_pass_s - clock()))
            if cache.wait(snapshot.version, timeout_s):
                break
        stopping.wait(max(_BATCH_S, took_s))  # limits the load to half of one CPU


def _verify(
    writer: Writer,
    writes: Iterable[Write],
    refused: dict[ObjectVersion, float],
    verified: dict[ObjectVersion, float],
) -> None:
    """Read the objects of destructive writes again before the next pass."""
    for write in writes:
        version = object_version(involved_object(write))
        try:
            writer.refresh(write)
            verified[version] = time.monotonic() + _VERIFIED_S
        except (ApiException, HTTPError) as error:
            log(
                logging.WARNING,
                "deletion postponed: the pods could not be read",
                error=describe_error(error),
            )
            refused[version] = time.monotonic() + _RETRY_S


def _write_all(
    writer: Writer,
    writes: Iterable[Write],
    stopping: threading.Event,
    refused: dict[ObjectVersion, float],
) -> bool:
    """Perform writes and record refused ones; return whether the API server is reachable."""
    for write in writes:
        version = object_version(involved_object(write))
        if stopping.is_set():
            return False
        if version in refused:  # this also skips the events about a refused write
            continue
        try:
            is_done = writer.write(write)
        except ApiException as error:
            log(logging.WARNING, "write failed", error=describe_error(error))
            is_done = False
        except HTTPError as error:
            log(logging.WARNING, "write failed", error=describe_error(error))
            return False
        if not is_done:
            refused[version] = time.monotonic() + _RETRY_S
    return True
