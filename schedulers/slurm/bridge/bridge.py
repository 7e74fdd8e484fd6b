"""Bridge between job_submit.lua and the predictor: answers each submission within a time limit.

Whatever fails, the answer is "no changes": Slurm then treats the job as if Presage were not there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from threading import Lock

from presage.errors import PresageError, one_line
from presage.schedulers.slurm.bridge.decide import CPU, DecisionOptions, decide
from presage.schedulers.slurm.bridge.job_forecasts import Backend, JobForecasts
from presage.schedulers.slurm.bridge.submission import Changes, Submission, parse_lines
from presage.schedulers.slurm.feature_store import FeatureStore
from presage.schedulers.slurm.feature_text import to_features, to_message
from presage.schedulers.slurm.job_note import is_word
from presage.serving.server.log import log

THREADS = 4
MAX_PENDING = 16  # predictions; further submissions are answered without one


class Bridge:
    """Decides about submissions; safe to share between threads.

    Parameters
    ----------
    backend : Backend
        Source of forecasts.
    kinds : mapping of str to str
        Device kind by GRES type, "gpu" for GPUs of any other type, and "cpu" for jobs without GPU.
    store : FeatureStore
        Keeps the features of jobs on one device, whose outcomes are reported.
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
        self._store, self._kinds, self._options = store, kinds, options
        self._forecasts = JobForecasts(backend, options)
        self._is_watched, self._timeout_s = is_watched, timeout_s
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="slurm-bridge")
        self._pending, self._counting = 0, Lock()
        self.counts: Counter[str] = Counter()

    def respond(self, request: bytes) -> bytes:
        """Return the response to a request of job_submit.lua, within the time limit."""
        with self._counting:
            is_busy = self._pending >= MAX_PENDING
            self._pending += not is_busy
        if is_busy:
            return self._counted(Changes(reason="too many submissions are pending"), "busy")
        done = self._pool.submit(self._decide, request)
        done.add_done_callback(self._finished)
        try:
            return self._counted(done.result(timeout=self._timeout_s))
        except FutureTimeoutError:
            return self._counted(Changes(reason="the predictor did not answer in time"), "late")

    def refresh(self) -> None:
        """Read the devices again, so that no submission has to wait for them.

        Raises
        ------
        PresageError
            The predictor cannot be reached, or a device kind is unknown.
        """
        for kind in set(self._kinds.values()):
            self._forecasts.read_device(kind)

    def _finished(self, _done: Future[Changes]) -> None:
        with self._counting:
            self._pending -= 1

    def _counted(self, changes: Changes, result: str = "") -> bytes:
        with self._counting:
            self.counts[result or ("unchanged" if changes.reason else "answered")] += 1
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
        if not job.is_supported or gpus is None:
            return Changes(reason="its nodes, tasks or generic resources are not supported")
        kind = self._kinds.get(gres) or self._kinds.get("gpu") if gpus else self._kinds.get(CPU)
        if not kind or not is_word(kind):
            return Changes(reason=f"no device kind for {'its GPUs' if gpus else 'its CPUs'}")
        message = to_message(job.features)
        features, device = to_features(message), self._forecasts.device(kind)
        forecast = self._forecasts.forecast(features, device, max(1, gpus), job.nodes)
        # The outcome of a job is that of one device.
        digest = self._store.put(message) if gpus <= 1 else ""
        if not self._is_watched():
            job = replace(job, options=job.options | {"pin-time"})
        return decide(job, forecast, device, digest, self._options)
