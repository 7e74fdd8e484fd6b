"""Bridge between job_submit.lua and the predictor: answers each submission within a time limit.

Whatever fails, the answer is "no changes": Slurm then treats the job as if Presage were not there.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from threading import Lock
from typing import Protocol

from presage.errors import InvalidJobError, PresageError, one_line
from presage.features.device.device import Device
from presage.features.placement import Placement
from presage.schedulers.slurm.bridge.decide import CPU, DecisionOptions, decide
from presage.schedulers.slurm.bridge.submission import Changes, Submission, parse_lines
from presage.schedulers.slurm.feature_store import FeatureStore
from presage.schedulers.slurm.feature_text import to_features, to_message
from presage.schedulers.slurm.job_note import is_word
from presage.serving.predictor.prediction_backend import JobForecast
from presage.serving.server.log import log

THREADS = 4
MAX_PENDING = 16  # predictions; further submissions are answered without one
DEVICE_AGE_S = 300.0  # a new release may have other calibrations


class Backend(Protocol):
    """Part of :class:`presage.serving.predictor.prediction_backend.PredictionBackend` used here."""

    def predict(self, placements: list[Placement], *, coverage: float) -> list[JobForecast]:
        """Return one forecast per placement."""
        ...

    def device(self, kind: str) -> Device:
        """Return the device of a kind."""
        ...


class Bridge:
    """Decides about submissions; safe to share between threads.

    Parameters
    ----------
    backend : Backend
        Source of forecasts.
    kinds : mapping of str to str
        Device kind by GRES type, "gpu" for GPUs of any other type, and "cpu" for jobs without GPU.
    is_watched : callable
        Returns whether the watcher runs. Without it time limits are unchanged, because no limit
        would be extended.
    timeout_s : float
        Time limit of an answer.
    """

    def __init__(
        self,
        backend: Backend,
        store: FeatureStore,
        kinds: Mapping[str, str],
        options: DecisionOptions,
        *,
        is_watched: Callable[[], bool],
        timeout_s: float = 0.04,
    ) -> None:
        self._backend, self._store, self._kinds, self._options = backend, store, kinds, options
        self._is_watched, self._timeout_s = is_watched, timeout_s
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="slurm-bridge")
        self._devices: dict[str, tuple[float, Device]] = {}
        self._pending, self._counting = 0, Lock()
        self.counts: Counter[str] = Counter()

    def respond(self, request: bytes) -> bytes:
        """Return the response to a request of job_submit.lua, within the time limit."""
        with self._counting:
            is_busy = self._pending >= MAX_PENDING
            self._pending += not is_busy
        if is_busy:
            return self._counted(Changes(reason="too many submissions are pending"))
        done = self._pool.submit(self._decide, request)
        done.add_done_callback(self._finished)
        try:
            return self._counted(done.result(timeout=self._timeout_s))
        except FutureTimeoutError:
            return self._counted(Changes(reason="the predictor did not answer in time"))

    def warm_up(self) -> None:
        """Connect to the predictor and read the devices, so that the first job need not wait.

        Raises
        ------
        PresageError
            The predictor cannot be reached, or a device kind is unknown.
        """
        for kind in set(self._kinds.values()):
            self._device(kind)

    def _finished(self, _done: Future[Changes]) -> None:
        with self._counting:
            self._pending -= 1

    def _counted(self, changes: Changes) -> bytes:
        with self._counting:
            self.counts[changes.reason or "answered"] += 1
        if changes.reason:
            log(logging.INFO, "a submission is unchanged", reason=changes.reason)
        return changes.lines()

    def _decide(self, request: bytes) -> Changes:
        try:
            return self._changes(Submission.parse(parse_lines(request)))
        except (PresageError, ValueError, ArithmeticError, OSError) as error:
            return Changes(reason=one_line(error)[:300])
        except Exception as error:  # a defect must not reach slurmctld
            log(logging.ERROR, "a submission failed", error=repr(error)[:300])
            return Changes(reason="internal error")

    def _changes(self, job: Submission) -> Changes:
        if not job.features:
            return Changes(reason="the job has no features")
        gres, gpus = job.gpu_request()
        if not job.is_single or gpus > 1:
            return Changes(reason="the job uses several devices, nodes or tasks")
        kind = self._kinds.get(gres) or self._kinds.get("gpu") if gpus else self._kinds.get(CPU)
        if not kind or not is_word(kind):
            return Changes(reason=f"no device kind for {'GPUs' if gpus else 'jobs without GPU'}")
        message = to_message(job.features)
        features = to_features(message)
        device = self._device(kind)
        placement = Placement(features, device)
        forecast = self._forecast(placement)
        changes = decide(job, forecast, device, self._store.put(message), self._options)
        if changes.time_limit_minutes is not None and not self._is_watched():
            unwatched = replace(job, options=job.options | {"pin-time"})
            changes = decide(unwatched, forecast, device, self._store.put(message), self._options)
        return changes

    def _forecast(self, placement: Placement) -> JobForecast:
        """Return the forecast whose upper ends are at the quantile and at one minus the risk."""
        of_time = round(2 * self._options.quantile - 1, 6)
        of_memory = round(1 - 2 * self._options.risk, 6)
        (forecast,) = self._backend.predict([placement], coverage=of_time)
        if of_memory == of_time:
            return forecast
        (other,) = self._backend.predict([placement], coverage=of_memory)
        return replace(other, runtime_s=forecast.runtime_s, step_time_s=forecast.step_time_s)

    def _device(self, kind: str) -> Device:
        now_s = time.monotonic()
        found = self._devices.get(kind)
        if found is None or now_s - found[0] > DEVICE_AGE_S:
            found = now_s, self._backend.device(kind)
            self._devices[kind] = found
        return found[1]


def check_kinds(kinds: Mapping[str, str]) -> None:
    """Raise InvalidJobError if a device kind cannot be written into a job's note."""
    for kind in kinds.values():
        if not is_word(kind):
            raise InvalidJobError(f"device kind {kind!r} has characters other than a-z 0-9 . _ - +")
