"""Accuracy of measurements, written to docs/benchmarks/measurement.md.

Run ``python -m benchmarks.profiling.measurement [--minutes 20]`` on a quiet machine: what profiling
costs, how well two passes agree, how many steps are enough, what a neighbour's load does.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.markdown import write_page
from presage.features.device.device import Device, Share, usable_cores
from presage.features.device.local_device import detect
from presage.pipelines.profiling.campaign.campaign import run_campaign
from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
from presage.pipelines.profiling.machine import machine_digest, versions
from presage.pipelines.profiling.running.measure import measure_solo
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.running.worker import step_through
from presage.pipelines.profiling.running.worker_pool import Workers
from presage.pipelines.profiling.sampling.cuda_clock import step_through_on_gpu
from presage.pipelines.profiling.sampling.samplers import is_gpu, make_sampler
from presage.pipelines.profiling.zoo import build, parse

PAGE = Path("docs/benchmarks/measurement.md")
SMALL = ("mlp/w128-d2/b32/sgd", "resnet/w16-d8/b8/sgd", "gpt/w128-d4-t128/b4/adamw")
LARGE = ("mlp/w2048-d16/b256/sgd", "resnet/50-s224/b32/sgd", "gpt/gpt2-t256/b4/adamw")
ROUNDS, WINDOW_S = 40, 0.6
STEPS = (3, 5, 12, 25, 50, 100)
BURNERS = (0, 1, 2)
BURN = "while True: pass"
BAR_PERCENT = 2.0

Rows = list[tuple[str, ...]]


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="for the two passes")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    torch.set_num_threads(usable_cores())
    device = detect()
    jobs = LARGE if is_gpu(device) else SMALL
    page = [
        "# Accuracy of measurements",
        "",
        "This page has the overhead, noise and repeatability of profiling. Written by",
        "`python -m benchmarks.profiling.measurement`;",
        "[measuring.md](../pipeline/measuring.md) defines the terms.",
        "",
        f"Device {device.kind}, machine {machine_digest(device)}, {versions(device)}.",
        *section_overhead(device, jobs),
        *section_steps(device, jobs),
        *(section_noise(device, jobs) if not is_gpu(device) else []),
        *section_repeatability(60 * args.minutes),
    ]
    write_page(args.page, page)


# --- what profiling costs -------------------------------------------------------------------------


def section_overhead(device: Device, jobs: Sequence[str]) -> list[str]:
    """Return paired differences: the same process steps with and without the overhead."""
    rows: Rows = []
    for job in jobs:
        (timing, timing_error), (sampling, sampling_error) = (
            timing_percent(device, job),
            sampling_percent(device, job),
        )
        error = math.hypot(timing_error, sampling_error)
        rows.append(
            (
                f"`{job}`",
                f"{timing:+.2f} ± {timing_error:.2f}",
                f"{sampling:+.2f} ± {sampling_error:.2f}",
                f"{timing + sampling:+.2f} ± {error:.2f}",
            )
        )
        say(f"overhead of {job}: {rows[-1][1:]} %")
    return [
        "",
        "## Overhead of profiling",
        "",
        f"Increase of step time in per cent, median of {ROUNDS} paired windows of {WINDOW_S:g} s. "
        "Timing of each step is compared with a bare loop, and sampling of the device with the "
        "same worker without sampling. ± is the standard error. The target is "
        f"{BAR_PERCENT:g} % for both together.",
        "",
        *table(("job", "timing each step %", "sampling the device %", "together %"), rows),
    ]


def sampling_percent(device: Device, job: str) -> tuple[float, float]:
    """Return by how much a worker's median step is longer while the sampler runs."""
    with Workers(device, RunOptions(threads=usable_cores())) as workers:
        child = workers.begin(parse(job), Share())
        try:
            child.read(until_s=time.monotonic() + 120)
            return paired_percent(
                lambda: window_s(child, None), lambda: window_s(child, make_sampler(device))
            )
        finally:
            child.kill()


def window_s(child: Any, sampler: Any) -> float:
    """Return the median step of one window."""
    start_s = time.monotonic() + 0.05
    child.send({"start_s": start_s, "deadline_s": start_s + WINDOW_S})
    if sampler is not None:
        sampler.start([child.pid])
    time.sleep(max(0.0, start_s + WINDOW_S - time.monotonic()))
    if sampler is not None:
        sampler.stop()
    steps = child.read(until_s=start_s + WINDOW_S + 120)["steps"]
    return float(statistics.median(end - begin for begin, end in steps))


def timing_percent(device: Device, job: str) -> tuple[float, float]:
    """Return by how much a step is longer when each is timed."""
    with torch.device("cuda" if is_gpu(device) else "cpu"):
        run = build(parse(job)).run
    run()
    step = step_through_on_gpu if is_gpu(device) else step_through

    def timed() -> float:
        now_s = time.monotonic()
        steps, _ = step(run, now_s, now_s + WINDOW_S)
        return (steps[-1][1] - steps[0][0]) / len(steps)

    def bare() -> float:
        start_s = now_s = time.monotonic()
        steps = 0
        while now_s < start_s + WINDOW_S:
            for _ in range(8):
                run()
            if is_gpu(device):
                torch.cuda.synchronize()
            steps += 8
            now_s = time.monotonic()
        return (now_s - start_s) / steps

    return paired_percent(bare, timed)


def paired_percent(without: Callable[[], float], with_: Callable[[], float]) -> tuple[float, float]:
    """Return the median of ratios of adjacent windows, in alternation, and its error."""
    ratios = []
    for turn in range(ROUNDS):
        first, second = (without, with_) if turn % 2 == 0 else (with_, without)
        a, b = first(), second()
        ratios.append(b / a if turn % 2 == 0 else a / b)
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    # Of a normal distribution the quartiles are 1.35 deviations apart, and a median's error is 1.25
    # times a mean's.
    error = 1.25 * (high - low) / 1.35 / math.sqrt(len(ratios))
    return 100 * float(middle - 1), 100 * float(error)


# --- how many steps are enough --------------------------------------------------------------------


def section_steps(device: Device, jobs: Sequence[str]) -> list[str]:
    """Return the error of the median of n steps in a row, against the long window."""
    rows: Rows = []
    for job in jobs:
        times = np.array(long_window(device, job))
        whole = np.median(times)
        cells = []
        for n in STEPS:
            parts = [np.median(times[i : i + n]) for i in range(0, len(times) - n + 1, n)]
            errors = np.abs(np.array(parts) / whole - 1)
            cells.append(f"{100 * np.quantile(errors, 0.9):.1f}" if len(parts) >= 5 else "-")
        rows.append((f"`{job}`", str(len(times)), *cells))
        say(f"steps of {job}: {cells}")
    return [
        "",
        "## Number of steps",
        "",
        "90th percentile of the difference in per cent between the median of some consecutive "
        "steps and the median of 30 seconds. The profiler takes at least 12 steps.",
        "",
        *table(("job", "steps in 30 s", *(f"{n} steps" for n in STEPS)), rows),
    ]


def long_window(device: Device, job: str, seconds: float = 30.0) -> list[float]:
    """Return the times of all steps of a long window."""
    with Workers(device, RunOptions(threads=usable_cores())) as workers:
        child = workers.begin(parse(job), Share())
        try:
            child.read(until_s=time.monotonic() + 120)
            start_s = time.monotonic() + 0.05
            child.send({"start_s": start_s, "deadline_s": start_s + seconds})
            steps = child.read(until_s=start_s + seconds + 120)["steps"]
            return [end - begin for begin, end in steps]
        finally:
            child.kill()


# --- a neighbour's load ---------------------------------------------------------------------------


def section_noise(device: Device, jobs: Sequence[str]) -> list[str]:
    """Measure the same job while other programs run endless loops."""
    rows: Rows = []
    hasty = RunOptions(threads=usable_cores(), quiet_wait_s=0.0, attempts=1)
    for job in jobs:
        solo_s = 0.0
        for burners in BURNERS:
            others = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(burners)]
            try:
                run = measure_solo(parse(job), device, hasty, window_s=3.0)
            finally:
                for other in others:
                    other.kill()
                    other.wait()
            step_s = run.members[0].step_time_median_s or float("nan")
            solo_s = solo_s or step_s
            rows.append(
                (
                    f"`{job}`",
                    str(burners),
                    f"{run.foreign_load or 0:.2f}",
                    f"{step_s / solo_s:.2f}",
                )
            )
        say(f"noise beside {job}: {rows[-len(BURNERS) :]}")
    return [
        "",
        "## Effect of other load",
        "",
        f"A job runs next to endless loops of other programs, on {device.cores} cores. The table "
        "has the load that the profiler detects, and the step time over that without loops. Above "
        "a foreign load of 0.05 the profiler repeats the window up to three times, and keeps the "
        "one with the lowest load, which it reports as `foreign_load`.",
        "",
        *table(("job", "endless loops", "foreign load", "step time, ratio"), rows),
    ]


# --- two passes -----------------------------------------------------------------------------------


def section_repeatability(seconds: float) -> list[str]:
    """Run two campaigns of the same plan, one after the other."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in ("first", "second")]
        jobs, together = max(4, round(seconds / 4 / 6)), max(3, round(seconds / 4 / 12))
        settings = CampaignSettings(
            campaign="repeat", budget_s=seconds, jobs=jobs, colocations=together
        )
        for folder in folders:
            run_campaign(folder, settings, lambda progress: say(json.dumps(progress.current)))
        return [
            "",
            "## Repeatability",
            "",
            "Relative difference in per cent between two consecutive measurements of the same "
            "plan.",
            "",
            *table(("figure", "pairs", "median %", "90th percentile %"), differences(folders)),
        ]


def differences(folders: Sequence[Path]) -> Rows:
    """Return relative differences between both passes."""
    executions = paired(folders, "executions", ["job_id"])
    together = paired(folders, "colocations", ["colocation_id", "member"])
    figures = (
        ("step time", executions, "step_time_median_s"),
        ("memory", executions, "memory_peak_bytes"),
        ("compute utilization", executions, "compute_utilization"),
        ("step time, co-located", together, "step_time_median_s"),
        ("slowdown", together, "slowdown"),
    )
    rows: Rows = []
    for name, frame, column in figures:
        a, b = frame[f"{column}_x"], frame[f"{column}_y"]
        relative = (100 * (a - b).abs() / (a + b) * 2).dropna()
        within = relative.quantile(0.9)
        rows.append((name, str(len(relative)), f"{relative.median():.1f}", f"{within:.1f}"))
        say(f"{rows[-1]}")
    return rows


def paired(folders: Sequence[Path], table_name: str, key: Sequence[str]) -> pd.DataFrame:
    """Return the joined rows of both passes."""
    first, second = (pd.read_parquet(folder / f"{table_name}.parquet") for folder in folders)
    return first.merge(second, on=list(key))


def table(head: Sequence[str], rows: Rows) -> list[str]:
    """Return Markdown rows, numbers aligned right."""
    rule = "|".join(["---", *["---:"] * (len(head) - 1)])
    return [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]


def say(line: str) -> None:
    """Print progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


if __name__ == "__main__":
    main()
