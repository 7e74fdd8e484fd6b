"""Measurement of training jobs on this machine's device: one solo, or several co-located."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from presage.features.device.device import Device, Share
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.running.run_results import MemberResult, RunResult
from presage.pipelines.profiling.running.worker_pool import Workers
from presage.pipelines.profiling.sampling.samplers import (
    DeviceSample,
    Sampler,
    is_gpu,
    make_sampler,
    memory_in_use_bytes,
    require_driver,
)
from presage.pipelines.profiling.zoo import JobConfig
from presage.system.arrays import Array
from presage.system.processes.child_process import Child, ChildFailure

FULL_SHARE = Share()

# A solo window: a number of seconds or warm steps, whichever is longer, up to a limit.
SOLO_STEPS, SOLO_LIMIT_S = 12, 6.0
# Each member of a co-location solo, just before: shorter, because it is only a reference.
REFERENCE_STEPS, REFERENCE_S, REFERENCE_LIMIT_S = 5, 0.5, 2.5
START_DELAY_S = 0.05  # time for the window's request to reach every member

Steps = Sequence[tuple[float, float]]
LEAST_HALF = 4  # minimum steps in half a window for a comparable median
Response = dict[str, Any]


def measure_solo(
    config: JobConfig,
    device: Device,
    options: RunOptions,
    *,
    window_s: float,
    share: Share = FULL_SHARE,
    until_s: float = math.inf,
    workers: Workers | None = None,
) -> RunResult:
    """Measure one job that has the device exclusively, for ``window_s`` and a number of steps.

    After ``until_s`` of the monotonic clock, neither repeat a window nor wait for quiet.
    """

    def choose_window(ready: Sequence[Response]) -> float:
        warm_step_s: float = ready[0]["warm_step_s"]
        return solo_window_s(window_s, warm_step_s=warm_step_s)

    run = _Run(device, options, workers or Workers(device, options), until_s)
    return run.measure([config], [share], choose_window)


def measure_colocated(
    configs: Sequence[JobConfig],
    device: Device,
    options: RunOptions,
    *,
    window_s: float,
    shares: Sequence[Share] = (),
    until_s: float = math.inf,
    workers: Workers | None = None,
) -> RunResult:
    """Measure several jobs at the same time, each in its own process and on its share.

    Each job is timed solo first, while the others wait: a shared machine's speed drifts within
    minutes, so a slowdown is the ratio of two times measured seconds apart.
    """
    shares = shares or [FULL_SHARE] * len(configs)
    run = _Run(device, options, workers or Workers(device, options), until_s)
    return run.measure(configs, shares, lambda _ready: window_s)


def solo_window_s(least_s: float, *, warm_step_s: float) -> float:
    """Return a window long enough for a median of steps and short enough for hundreds of jobs."""
    return min(SOLO_LIMIT_S, max(least_s, SOLO_STEPS * warm_step_s))


def common_steps(members: Sequence[Steps]) -> list[Steps]:
    """Return each member's steps that lie entirely in the time when all members were stepping."""
    if not all(members):
        return [[] for _ in members]
    start_s = max(steps[0][0] for steps in members)
    end_s = min(steps[-1][1] for steps in members)
    return [[(a, b) for a, b in steps if start_s <= a and b <= end_s] for steps in members]


@dataclass(frozen=True, slots=True)
class _Run:
    """Parameters and deadline of one run."""

    device: Device
    options: RunOptions
    workers: Workers
    until_s: float

    def measure(
        self,
        configs: Sequence[JobConfig],
        shares: Sequence[Share],
        choose_window: Callable[[Sequence[Response]], float],
    ) -> RunResult:
        before_bytes = memory_in_use_bytes(self.device) if len(configs) == 1 else None
        with ExitStack() as stack:
            children = []
            for config, share in zip(configs, shares, strict=True):
                children.append(self.workers.begin(config, share))
                stack.callback(children[-1].kill)
            jobs = [config.name for config in configs]
            responses = _read_all(children, until_s=time.monotonic() + self.options.timeout_s)
            if failed := self._failed(jobs, responses):
                return failed
            ready = [response for response in responses if isinstance(response, dict)]
            members = Members(jobs, children, ready, self.device, before_bytes)
            if len(children) == 1:
                return self._quietest_window(members, choose_window(ready))
            return self._colocated(members, choose_window(ready))

    def _colocated(self, members: Members, window_s: float) -> RunResult:
        # Wait for quiet only before the first window: the others follow at once.
        references = [
            self._quietest_window(member, reference_window_s(member.ready[0]), wait=turn == 0)
            for turn, member in enumerate(members.each())
        ]
        if any(result.failed for result in references):
            return RunResult(tuple(result.members[0] for result in references))
        colocated = self._quietest_window(members, window_s, wait=False)
        return colocated if colocated.failed else _with_references(colocated, references)

    def _quietest_window(
        self, members: Members, window_s: float, *, wait: bool = True
    ) -> RunResult:
        """Measure a window; repeat it with the same processes while other load disturbs it."""
        options = self.options
        sampler = make_sampler(self.device, memory_before_bytes=members.memory_before_bytes)
        patience_s = options.quiet_wait_s
        best: RunResult | None = None
        for attempt in range(options.attempts):
            if wait or attempt:
                patience_s = min(patience_s, self.until_s - window_s - time.monotonic())
                patience_s -= wait_until_quiet(sampler, options, patience_s=patience_s)
            responses, sample = _window(members.children, sampler, window_s, options)
            if failed := self._failed(members.jobs, responses):
                return failed
            result = _evaluate(members, responses, sample)
            best = result if best is None else less_disturbed(best, result)
            if _is_undisturbed(best, options) or time.monotonic() + window_s > self.until_s:
                break
        assert best is not None, "attempts >= 1"
        return best

    def _failed(
        self, jobs: Sequence[str], responses: Sequence[Response | ChildFailure]
    ) -> RunResult | None:
        """Return the result of a run in which a member failed, else None.

        Raises
        ------
        ProfilingError
            The run failed because its GPU is gone.
        """
        failures = [response for response in responses if isinstance(response, ChildFailure)]
        if not failures:
            return None
        if any(failure.failure != "out-of-memory" for failure in failures):
            require_driver(self.device)
        return RunResult(
            tuple(
                MemberResult(job, failure=response.failure, message=str(response))
                if isinstance(response, ChildFailure)
                else MemberResult(job)
                for job, response in zip(jobs, responses, strict=True)
            )
        )


@dataclass(frozen=True, slots=True)
class Members:
    """Warm members of a run that wait for a window; ``ready`` are their responses so far."""

    jobs: Sequence[str]
    children: Sequence[Child]
    ready: Sequence[Response]
    device: Device
    memory_before_bytes: int | None  # in use on the GPU before its only member started

    def each(self) -> Iterator[Members]:
        """Yield every member by itself."""
        for job, child, ready in zip(self.jobs, self.children, self.ready, strict=True):
            yield Members([job], [child], [ready], self.device, None)  # others use memory, too


def reference_window_s(ready: Response) -> float:
    """Return a window with enough steps for a median, short compared to a run's start."""
    steps_s: float = REFERENCE_STEPS * ready["warm_step_s"]
    return min(REFERENCE_LIMIT_S, max(REFERENCE_S, steps_s))


def _with_references(colocated: RunResult, references: Sequence[RunResult]) -> RunResult:
    members = tuple(
        replace(member, solo_step_time_s=solo.members[0].step_time_median_s)
        for member, solo in zip(colocated.members, references, strict=True)
    )
    loads = [r.foreign_load for r in (colocated, *references) if r.foreign_load is not None]
    return RunResult(members, max(loads, default=None), colocated.sample)


def less_disturbed(first: RunResult, second: RunResult) -> RunResult:
    """Return the less disturbed of two results; a failed result loses, the first wins ties."""
    return min(first, second, key=lambda result: (result.failed, _disturbance(result)))


def _disturbance(result: RunResult) -> float:
    return _load(result.foreign_load) + result.unsteadiness


def _is_undisturbed(result: RunResult, options: RunOptions) -> bool:
    return (
        not result.failed
        and _load(result.foreign_load) <= options.max_foreign_load
        and result.unsteadiness <= options.max_unsteadiness
    )


def unsteadiness(times_s: Array) -> float:
    """Return the relative difference of the median step between a window's two halves.

    Only this shows disturbance by the host of a virtual machine. 0 if there are too few steps.
    """
    half = len(times_s) // 2
    if half < LEAST_HALF:
        return 0.0
    return abs(float(np.median(times_s[half:]) / np.median(times_s[:half])) - 1)


def wait_until_quiet(sampler: Sampler, options: RunOptions, *, patience_s: float) -> float:
    """Wait at most ``patience_s`` until other load leaves the device; return seconds waited."""
    start_s = time.monotonic()
    while True:
        sampler.start(())
        time.sleep(options.quiet_sample_s)
        quiet = _load(sampler.stop().foreign_load) <= options.max_foreign_load
        waited_s = time.monotonic() - start_s
        if quiet or waited_s >= patience_s:
            return waited_s


def _read_all(children: Sequence[Child], *, until_s: float) -> list[Response | ChildFailure]:
    responses: list[Response | ChildFailure] = []
    for child in children:
        try:
            responses.append(child.read(until_s=until_s))
        except ChildFailure as failure:
            responses.append(failure)
    return responses


def _window(
    children: Sequence[Child], sampler: Sampler, window_s: float, options: RunOptions
) -> tuple[list[Response | ChildFailure], DeviceSample]:
    start_s = time.monotonic() + START_DELAY_S
    deadline_s = start_s + window_s
    for child in children:
        child.send({"start_s": start_s, "deadline_s": deadline_s})
    sampler.start([child.pid for child in children])  # takes some ms
    time.sleep(max(0.0, deadline_s - time.monotonic()))
    sample = sampler.stop()
    return _read_all(children, until_s=deadline_s + options.timeout_s), sample


def _evaluate(
    members: Members, responses: Sequence[Response | ChildFailure], sample: DeviceSample
) -> RunResult:
    windows = [response for response in responses if isinstance(response, dict)]
    counted = common_steps([window["steps"] for window in windows])
    results = []
    for job, child, ready, window, steps in zip(
        members.jobs, members.children, members.ready, windows, counted, strict=True
    ):
        if not steps:
            message = "no complete step while all members ran; use a longer window"
            results.append(MemberResult(job, failure="timeout", message=message))
            continue
        times_s = np.array([end_s - start_s for start_s, end_s in steps])
        wall_s = window["steps"][-1][1] - window["steps"][0][0]
        utilization = sample.compute_utilization
        if utilization is None and not is_gpu(members.device):
            utilization = window["cpu_s"] / (wall_s * members.device.cores)
        results.append(
            MemberResult(
                job,
                steps=len(steps),
                unsteadiness=unsteadiness(times_s),
                step_time_median_s=float(np.median(times_s)),
                step_time_p90_s=float(np.quantile(times_s, 0.9)),
                compute_utilization=utilization,
                memory_peak_bytes=sample.memory_bytes.get(child.pid) or window["memory_peak_bytes"],
                memory_allocated_peak_bytes=window.get("memory_allocated_peak_bytes"),
                memory_reserved_peak_bytes=window.get("memory_reserved_peak_bytes"),
                setup_s=ready["setup_s"],
            )
        )
    return RunResult(tuple(results), sample.foreign_load, sample)


def _load(foreign_load: float | None) -> float:
    """Return 0 for an unknown load: measuring again would not reveal it either."""
    return 0.0 if foreign_load is None else foreign_load
