"""Outcome logs of a generated site, as servers write them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.retraining_growth.site import Site
from presage.features.device.device import Share
from presage.serving.codec.wire_values import write_device, write_job, write_share
from presage.serving.outcomes.outcome_log import OutcomeLog
from presage.serving.v1 import prediction_pb2 as pb
from presage.system.arrays import Array, Ints, Mask

NEWEST_S, PERIOD_S = 1.78e9, 180 * 86_400.0
COLOCATED, FAILED, REPORTED_TWICE = 0.1, 0.01, 0.005  # fractions of all outcomes
NOISE = 0.04  # standard deviation of the logarithm of a repeated measurement
SETUP_S, AGENTS = 20.0, 40
SLOWDOWN_SHAPE = 0.5  # of a co-located job: 1 + an exponential with this mean, per co-runner
REPORT = 1000  # outcomes


@dataclass(frozen=True)
class Drawn:
    """Outcomes as arrays of shape (outcomes,), in the order in which the jobs ended.

    Attributes
    ----------
    job, device : ndarray of int
        Positions in the site.
    co_runner : ndarray of int
        Position of the co-located job; -1 without one.
    roofline_s, memory_prior : ndarray
        Of the job on the device.
    slowdown : ndarray
        Of the job by its co-runner.
    noise : ndarray of shape (outcomes, 2)
        Factors on step time and memory.
    has_failed : ndarray of bool
    finished_s : ndarray
    """

    job: Ints
    device: Ints
    co_runner: Ints
    roofline_s: Array
    memory_prior: Array
    slowdown: Array
    noise: Array
    has_failed: Mask
    finished_s: Array


def draw_outcomes(site: Site, count: int, *, seed: int) -> Drawn:
    """Draw outcomes: the popularity of jobs and of devices falls with their rank, as 1 / rank."""
    rng = np.random.default_rng(seed)
    job = rng.choice(len(site.jobs), count, p=_by_rank(len(site.jobs)))
    device = rng.choice(len(site.devices), count, p=_by_rank(len(site.devices)))
    other = rng.choice(len(site.jobs), count, p=_by_rank(len(site.jobs)))
    pairs, row = np.unique(job * len(site.devices) + device, return_inverse=True)
    priors = site.priors([divmod(int(pair), len(site.devices)) for pair in pairs])
    is_colocated = rng.random(count) < COLOCATED
    # A pair of jobs on a device has a slowdown of its own.
    of_pair = np.random.default_rng([seed, 1]).exponential(SLOWDOWN_SHAPE, 1 << 16)
    slowdown = 1 + of_pair[(job * 7919 + other * 104_729 + device * 31) % len(of_pair)]
    return Drawn(
        job,
        device,
        np.where(is_colocated, other, -1),
        priors[0][row],
        priors[1][row],
        np.where(is_colocated, slowdown, 1.0),
        rng.lognormal(0, NOISE, (count, 2)),
        rng.random(count) < FAILED,
        NEWEST_S - PERIOD_S + np.sort(rng.random(count)) * PERIOD_S,
    )


def _by_rank(count: int) -> Array:
    weights = 1 / np.arange(1, count + 1)
    return weights / weights.sum()


def write_logs(site: Site, drawn: Drawn, folder: Path, *, release_id: str) -> None:
    """Write the outcomes to the logs of two servers; some are reported to both."""
    rng = np.random.default_rng(len(drawn.job))
    folder.mkdir(parents=True, exist_ok=True)
    with (
        closing(OutcomeLog(folder / "server-0.db")) as first,
        closing(OutcomeLog(folder / "server-1.db")) as second,
    ):
        for n, (reported, received_s) in enumerate(_reports(site, drawn, release_id)):
            main, other = (first, second) if n % 2 else (second, first)
            by = f"agent-{n % AGENTS}"
            again = [row for row in reported if rng.random() < REPORTED_TWICE]
            done = main.append(reported, reported_by=by, received_at_unix_s=received_s)
            if again:
                other.append(again, reported_by=by, received_at_unix_s=received_s).result()
            done.result()


def _reports(
    site: Site, drawn: Drawn, release_id: str
) -> Iterator[tuple[list[tuple[str, bytes]], float]]:
    """Yield keys and messages of reports, and when they are received."""
    jobs = [write_job(job) for job in site.jobs]
    devices = [write_device(device) for device in site.devices]
    for start in range(0, len(drawn.job), REPORT):
        rows = range(start, min(start + REPORT, len(drawn.job)))
        messages = [_message(site, drawn, row, jobs, devices, release_id) for row in rows]
        yield (
            [(one.idempotency_key, one.SerializeToString(deterministic=True)) for one in messages],
            float(drawn.finished_s[rows[-1]]) + 60.0,
        )


def _message(
    site: Site, drawn: Drawn, row: int, jobs: list[pb.Job], devices: list[pb.Device], release: str
) -> pb.Outcome:
    job, on, other = int(drawn.job[row]), int(drawn.device[row]), int(drawn.co_runner[row])
    share = write_share(Share() if other < 0 else Share(mode="time-slice"))
    out = pb.Outcome(
        idempotency_key=f"site/{row}",
        job=jobs[job],
        device=devices[on],
        share=share,
        release_id=release,
        finished_at_unix_s=float(drawn.finished_s[row]),
    )
    out.job.job_id = f"run-{row}"
    if other >= 0:
        out.colocated_jobs.add(job=jobs[other], share=share)
    memory = drawn.memory_prior[row] * site.memory_ratio[job] * drawn.noise[row, 1]
    if memory > site.devices[on].memory_bytes:
        out.failure = "out-of-memory"
    elif drawn.has_failed[row]:
        out.failure = "crash"
    else:
        _add_measurements(out, site, drawn, row, memory)
    return out


def _add_measurements(
    out: pb.Outcome, site: Site, drawn: Drawn, row: int, memory_bytes: float
) -> None:
    job, on = int(drawn.job[row]), int(drawn.device[row])
    step_s = drawn.roofline_s[row] * site.step_ratio[job] * site.speed[on] * drawn.noise[row, 0]
    step_s *= drawn.slowdown[row]
    out.step_time_median_s = float(step_s)
    out.runtime_s = SETUP_S + out.job.iterations * out.step_time_median_s
    if np.isfinite(memory_bytes):
        out.memory_peak_bytes = max(1, round(float(memory_bytes)))
    if np.isfinite(site.utilization[job]) and drawn.co_runner[row] < 0:
        utilization = site.utilization[job] * drawn.noise[row, 1]
        out.compute_utilization = float(np.clip(utilization, 0.001, 1.0))
    if np.isfinite(site.power_w[job]) and site.devices[on].compute_capability:
        out.additional["power_w"] = float(site.power_w[job] * drawn.noise[row, 0])
