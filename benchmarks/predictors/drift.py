"""Delay and false alarms of drift detection: the figures of decision 26.

Outcomes are drawn, not measured: an error of each job, which its 80 % interval covers four times in
five, and a noise of each run. ``python -m benchmarks.predictors.drift`` takes about five minutes on
one core; where ``river`` is installed its detectors are asked the same.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median, quantiles
from typing import Any

from presage.models.drift.drift_test import DriftMonitor, DriftPolicy, JudgedQuantity

EVERY = 10_000  # outcomes between two false alarms
RUNS, MOST = 50, 2_000
ERROR, NOISE, NOISY, SLOWER = 0.26, 0.03, 0.2, 1.3  # of a job, of its runs: in logarithms
DEVICES, FAMILIES = 4, 12


def outcome(
    rng: random.Random, key: int, job: int, error: float, times: float, noise: float
) -> JudgedQuantity:
    """Return a run of a job whose forecast is off by the job's own error."""
    within = 1.2816 * math.hypot(ERROR, noise)  # half of an 80 % interval
    return JudgedQuantity(
        key=str(key), quantity="step_time_s", device_kind=f"gpu {job % DEVICES}",
        family=f"family {job % FAMILIES}", job=str(job), in_domain=True,
        measured=times * math.exp(error + rng.gauss(0, noise)),
        low=math.exp(-within), median=1.0, high=math.exp(within),
    )  # fmt: skip


def stream(
    rng: random.Random,
    *,
    again: float,
    slower_after: float = math.inf,
    jobs: float = math.inf,
    noise: float = NOISE,
) -> Iterator[JudgedQuantity]:
    """Yield outcomes; a fraction ``again`` are of jobs seen before; ``jobs`` jobs at most."""
    errors: list[float] = []
    for key in range(sys.maxsize):
        if errors and (rng.random() < again or len(errors) >= jobs):
            job = rng.randrange(len(errors))
        else:
            job = len(errors)
            errors.append(rng.gauss(0, ERROR))
        yield outcome(rng, key, job, errors[job], SLOWER if key >= slower_after else 1.0, noise)


def false_alarms(again: float) -> int:
    """Return false alarms in 20 runs of ``EVERY`` outcomes; after one the detector is reset."""
    alarms = 0
    for seed in range(20):
        drift = DriftMonitor({}, DriftPolicy(EVERY))
        for n, judged in zip(range(EVERY), stream(random.Random(seed), again=again), strict=False):
            # Three quantities of an outcome, as agents report them.
            drift.add([replace(judged, quantity=q) for q in ("step_time_s", "memory_bytes")])
            if n % 100 == 99 and any(row.drift for row in drift.rows()):
                alarms += 1
                drift = DriftMonitor({}, DriftPolicy(EVERY))
    return alarms


def delays(before: int, again: float, jobs: float, noise: float = NOISE) -> list[int]:
    """Return the outcomes from the moment all jobs are slower until drift is detected anywhere."""
    found = []
    for seed in range(RUNS):
        drift = DriftMonitor({}, DriftPolicy(EVERY))
        drawn = stream(
            random.Random(seed), again=again, slower_after=before, jobs=jobs, noise=noise
        )
        late = MOST
        for n, judged in zip(range(before + MOST), drawn, strict=False):
            drift.add([judged])
            if n >= before and any(row.drift for row in drift.rows()):
                late = n + 1 - before
                break
        found.append(late)
    return found


def peers() -> dict[str, Callable[[], Any]]:
    """Return detectors of river with their default settings."""
    try:
        from river import drift
    except ModuleNotFoundError:
        return {}
    return {"ADWIN": drift.ADWIN, "Page-Hinkley": drift.PageHinkley}


def peer_delays(make: Callable[[], Any], before: int) -> list[int]:
    """Return :func:`delays` for new jobs; detectors get whether each missed its interval."""
    found = []
    for seed in range(RUNS):
        detector, late = make(), MOST
        drawn = stream(random.Random(seed), again=0.0, slower_after=before)
        for n, judged in zip(range(before + MOST), drawn, strict=False):
            detector.update(float(not judged.low <= judged.measured <= judged.high))
            if detector.drift_detected and n >= before:
                late = n + 1 - before
                break
            if detector.drift_detected:
                detector = make()
        found.append(late)
    return found


def peer_false_alarms(make: Callable[[], Any]) -> int:
    """Return :func:`false_alarms` for new jobs."""
    alarms = 0
    for seed in range(20):
        detector = make()
        for _, judged in zip(range(EVERY), stream(random.Random(seed), again=0.0), strict=False):
            detector.update(float(not judged.low <= judged.measured <= judged.high))
            if detector.drift_detected:
                alarms, detector = alarms + 1, make()
    return alarms


def summary(found: list[int]) -> str:
    """Return the median and ninth decile, and the number of runs without a detection."""
    never = sum(late == MOST for late in found)
    text = f"{median(found):.0f} ({quantiles(found, n=10)[-1]:.0f})"
    return f"{text}, {never} of {RUNS} never in {MOST}" if never else text


def main() -> None:
    """Print the tables."""
    print(f"false alarms in 20 x {EVERY:,} outcomes, {DEVICES} devices, {FAMILIES} families")
    for again in (0.0, 0.5, 0.95):
        print(f"  {again:.0%} of them of jobs seen before: {false_alarms(again)}", flush=True)
    for name, make in peers().items():
        print(f"  {name}: {peer_false_alarms(make)}", flush=True)
    print(f"outcomes until jobs that are {SLOWER} times as slow are noticed: median (90 %)")
    for before in (0, 50, 1_000):
        print(f"  new jobs, after {before}: {summary(delays(before, 0.0, math.inf))}", flush=True)
        for name, make in peers().items():
            print(f"    {name}: {summary(peer_delays(make, before))}", flush=True)
    for noise in (NOISE, NOISY):
        print(f"jobs seen before, whose runs differ by {noise:.0%}")
        for jobs, before in ((3, 33), (10, 110), (20, 40), (50, 1_500)):
            text = summary(delays(before, 0.0, jobs, noise))
            print(f"  {jobs} jobs with {before / jobs:.0f} runs each before: {text}", flush=True)


if __name__ == "__main__":
    main()
