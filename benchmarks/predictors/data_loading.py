"""Predicted data stalls against measured ones, written to docs/benchmarks/data_loading.md.

Run ``python -m benchmarks.predictors.data_loading``; it takes six minutes on two cores.
``--hand-over`` only measures the constants of handing a batch over, and prints them.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.markdown import write_page
from benchmarks.predictors.loading_runs import (
    COMPUTING,
    NETWORKS,
    SIDE,
    STEPS,
    WAITING,
    WARM_UP,
    Samples,
    Step,
    hand_over_s,
    load,
    sample_times_s,
    solo_step_s,
    training_step,
)
from presage.features.device.device import Share, usable_cores
from presage.features.job.data_loading import (
    HAND_OVER_BYTES_PER_S,
    HAND_OVER_S,
    DataLoading,
    processor_hand_over_s,
)
from presage.features.placement import Placement
from presage.models.release.pretrained import pretrained_release
from presage.models.release.release import load_release
from presage.serving.client.job_features import from_module
from presage.serving.predictor.predictor import Predictor

PAGE = Path("docs/benchmarks/data_loading.md")
BATCH_SIZES, ROUNDS = (16, 64), 3
MOST_S = 320.0  # no round is begun that would end later
WORKERS = {WAITING: (0, 1, 2, 4), COMPUTING: (0, 1, 2)}
LOADS = (0.5, 1.0, 2.0)
IMAGE_BYTES = 3 * SIDE**2 * 4
HAND_OVER_BATCHES = [(size, side) for size in BATCH_SIZES for side in (32, 96, 160)]
DEVICE_STEP_S = 0.04  # long enough for a worker to have the next batch ready


@dataclass(frozen=True, slots=True)
class Point:
    """One job: a network, its batch size, and how its samples are loaded.

    ``load`` is the loading of a batch over the step. Waiting workers share it, so that it is that
    of each.
    """

    network: str
    batch_size: int
    kind: str
    load: float
    workers: int

    def sample_s(self, solo_s: float) -> float:
        """Return the seconds that a sample should take."""
        sharing = max(1, self.workers) if self.kind == WAITING else 1
        return self.load * sharing * solo_s / self.batch_size


@dataclass(frozen=True, slots=True)
class Run:
    """Measured seconds of one run of a point.

    ``foreign`` is the share of the cores that other programs occupied meanwhile.
    """

    solo_s: float
    sample_s: float
    sample_cpu_s: float
    step_s: float
    wait_s: float
    foreign: float


@dataclass(frozen=True, slots=True)
class Row:
    """A point with its runs, and the step that Presage predicts."""

    point: Point
    runs: Sequence[Run]
    solo_s: float
    predicted_solo_s: float

    @property
    def found(self) -> Run:
        """The run with the least load by other programs, and medians of what the law reads."""
        least = min(self.runs, key=lambda run: run.foreign)
        return replace(
            least,
            solo_s=self.solo_s,
            sample_s=median(run.sample_s for run in self.runs),
            sample_cpu_s=median(run.sample_cpu_s for run in self.runs),
        )

    @property
    def loading(self) -> DataLoading:
        """Loading as a user describes it."""
        return DataLoading(
            sample_s=self.found.sample_s,
            sample_cpu_s=self.found.sample_cpu_s,
            workers=self.point.workers,
            batch_size=self.point.batch_size,
            hand_over_s=processor_hand_over_s(self.point.batch_size * IMAGE_BYTES),
            host_cores=usable_cores(),
        )

    @property
    def step_times_s(self) -> dict[str, float]:
        """Step time with loading by each method."""
        solo_s, law = self.found.solo_s, self.loading.loaded_step_s
        load_s = self.point.batch_size * self.found.sample_s / max(1, self.point.workers)
        return {
            "law": law(solo_s),
            "step + loading / workers": solo_s + load_s,
            "step only": solo_s,
            "law, predicted step": law(self.predicted_solo_s),
        }

    def percent(self, method: str) -> float:
        """Return the absolute percentage error of a method."""
        return 100 * abs(self.step_times_s[method] / self.found.step_s - 1)

    @property
    def spread(self) -> float:
        """Mean deviation of the runs from their median, in percent."""
        middle = median(run.step_s for run in self.runs)
        return float(np.mean([100 * abs(run.step_s / middle - 1) for run in self.runs]))

    @property
    def stall(self) -> float:
        """Measured stall as a share of the step."""
        return 1 - self.found.solo_s / self.found.step_s


def points(network: str, batch_size: int) -> list[Point]:
    """Return the points of a network and batch size, those of equal loads together."""
    return [
        Point(network, batch_size, kind, share, workers)
        for kind, counts in WORKERS.items()
        for share in LOADS
        for workers in counts
    ]


def measure(rounds: int) -> list[Row]:
    """Return all points with their runs; each round measures every point once."""
    jobs = [(name, batch_size) for name in NETWORKS for batch_size in BATCH_SIZES]
    steps = {name: training_step(build()) for name, build in NETWORKS.items()}
    targets_s = {job: solo_step_s(steps[job[0]], job[1]) for job in jobs}
    pass_s = sample_times_s(Samples(COMPUTING, 8), 16)[0] / 8
    runs: dict[Point, list[Run]] = {}
    begin = time.monotonic()
    for turn in range(rounds):
        if turn and (time.monotonic() - begin) * (turn + 1) / turn > MOST_S:
            break
        for name, batch_size in jobs:
            target_s = targets_s[name, batch_size]
            for point, run in measure_job(steps[name], points(name, batch_size), target_s, pass_s):
                runs.setdefault(point, []).append(run)
            sys.stderr.write(
                f"round {turn + 1} of {rounds}, {name}, batch {batch_size}, step "
                f"{1e3 * target_s:.1f} ms: {time.monotonic() - begin:.0f} s\n"
            )
    predicted = predicted_steps_s()
    solo_s = {
        job: median(
            run.solo_s
            for point, found in runs.items()
            for run in found
            if (point.network, point.batch_size) == job
        )
        for job in jobs
    }
    keys = {point: (point.network, point.batch_size) for point in runs}
    return [Row(one, runs[one], solo_s[key], predicted[key]) for one, key in keys.items()]


def measure_job(
    step: Step, ours: Sequence[Point], target_s: float, pass_s: float
) -> Iterator[tuple[Point, Run]]:
    """Yield the points of a network and batch size, each with one run."""
    for (kind, _), group in groupby(ours, lambda point: (point.kind, point.load)):
        solo_s, times_s = 0.0, dict[float, tuple[float, float]]()
        for point in group:
            solo_s = solo_s or solo_step_s(step, point.batch_size)
            sample_s = point.sample_s(target_s)
            cost = sample_s if kind == WAITING else max(1, round(sample_s / pass_s))
            samples = Samples(kind, cost)
            if cost not in times_s:
                times_s[cost] = sample_times_s(samples, point.batch_size)
            before = foreign_s()
            found = load(step, samples, point.batch_size, point.workers)
            foreign = np.subtract(foreign_s(), before)
            yield (
                point,
                Run(
                    solo_s, *times_s[cost], found.step_s, found.wait_s,
                    max(0.0, foreign[0] / foreign[1]),
                ),
            )  # fmt: skip


def predicted_steps_s() -> dict[tuple[str, int], float]:
    """Return the predicted seconds of a step by network and batch size, on one core of two."""
    predictor = Predictor(load_release(pretrained_release()))
    device, found = predictor.device("cpu-2"), {}
    for name, build in NETWORKS.items():
        for batch_size in BATCH_SIZES:
            images = torch.empty(batch_size, 3, SIDE, SIDE, device="meta")
            placement = Placement(
                from_module(build, images, iterations=1), device, Share(0.5, "cpu-quota")
            )
            found[name, batch_size] = predictor.predict([placement])[0].step_time_s.median
    return found


def fitted_hand_over() -> tuple[float, float]:
    """Return the seconds of any batch, and the bytes per second, of handing a batch over."""
    size = np.array([3 * 4 * batch * side**2 for batch, side in HAND_OVER_BATCHES], float)
    taken = np.array([hand_over_s(*one, DEVICE_STEP_S) for one in HAND_OVER_BATCHES])
    sys.stderr.write(f"handing over: {dict(zip(size, taken, strict=True))}\n")
    # Relative errors: small batches count as much as large ones.
    design = np.stack([np.ones_like(size), size], axis=1) / taken[:, None]
    fixed_s, byte_s = np.linalg.lstsq(design, np.ones_like(taken), rcond=None)[0]
    return float(fixed_s), float(1 / byte_s)


def foreign_s() -> tuple[float, float]:
    """Return the busy seconds of all cores but for this process and its former workers, and all.

    Both count from a fixed time. Seconds that a hypervisor took are among the busy ones.
    """
    values = [float(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    ticks, idle = os.sysconf("SC_CLK_TCK"), values[3] + values[4]
    own = [resource.getrusage(one) for one in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_s = sum(one.ru_utime + one.ru_stime for one in own)
    return (sum(values) - idle) / ticks - own_s, sum(values) / ticks


def page(rows: Sequence[Row], hand_over: tuple[float, float]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Predicted data stalls"
    yield ""
    yield f"Real training steps on one core, with a `torch.utils.data.DataLoader`: {len(rows)}"
    yield f"combinations of {len(NETWORKS)} networks, {len(BATCH_SIZES)} batch sizes, kind and cost"
    yield "of a sample, and number of workers. Written by `python -m"
    yield "benchmarks.predictors.data_loading`."
    yield ""
    runs = len(rows[0].runs)
    foreign = 100 * np.mean([row.found.foreign for row in rows])
    yield f"Each point was measured in {runs} rounds, with {STEPS} steps after {WARM_UP} others."
    yield f"The machine, a virtual one with {usable_cores()} cores, also ran other programs. Of the"
    yield f"{runs} runs the one counts in which they took the least time, whatever its result:"
    yield f"{foreign:.0f} % of the cores in the mean. Single runs deviate"
    yield f"from their median by {np.mean([row.spread for row in rows]):.1f} %."
    yield ""
    yield "Inputs of the law are the measured step without loading, the time of a sample in one"
    yield "process, and its processor time. No constant was fitted to these rows. Samples *wait*"
    yield "for a storage, which a sleep emulates, or *compute* an augmentation of images."
    yield ""
    yield from error_table(rows)
    yield ""
    yield from stall_table(rows)
    yield ""
    yield "## Constants"
    yield ""
    yield "Handing a batch over costs both processes a fixed time and a time by size. They were"
    yield "fitted to batches of a job that only reads its batch and then spins for"
    yield f"{1e3 * DEVICE_STEP_S:.0f} ms. *In this run* is the same fit just before the steps"
    yield "of this page were measured."
    yield ""
    yield "| | of any batch | rate |"
    yield "|---|---:|---:|"
    for name, (fixed_s, rate) in (
        ("in use", (HAND_OVER_S, HAND_OVER_BYTES_PER_S)), ("in this run", hand_over),
    ):  # fmt: skip
        yield f"| {name} | {1e3 * fixed_s:.2f} ms | {rate / 1e9:.1f} GB/s |"
    yield ""
    yield from LIMITS


LIMITS = (
    "## Limits",
    "",
    "- **No GPU was measured.** On a GPU the copy to the device is part of neither the law nor",
    "  this page, and the training process is assumed to occupy one core.",
    "- Both networks step for some milliseconds, so handing a batch over weighs more here than in",
    "  most jobs.",
    "- The cost of samples is constant, and storage has no cache and no limit on parallel reads.",
    "- *Law, predicted step* has the error of the shipped release for one core of a machine like",
    "  this one, too. Where the loader sets the pace, the step hardly matters.",
)


def error_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the errors of the step time with loading, by kind and workers."""
    methods = list(rows[0].step_times_s)
    yield "## Error of the step time with loading"
    yield ""
    yield "Mean / largest absolute percentage error. *Step + loading / workers* assumes that"
    yield "loading and step never overlap, *step only* that loading costs nothing."
    yield ""
    yield f"| samples | workers | points | {' | '.join(methods)} |"
    yield "|---|---:|---:|" + "---:|" * len(methods)
    groups = {
        f"{kind} | {workers}": [
            row for row in rows if (row.point.kind, row.point.workers) == (kind, workers)
        ]
        for kind, counts in WORKERS.items()
        for workers in counts
    }
    for name, group in (groups | {"**all** | ": list(rows)}).items():
        errors = [[row.percent(method) for row in group] for method in methods]
        cells = [f"{np.mean(one):.1f} / {max(one):.0f}" for one in errors]
        yield f"| {name} | {len(group)} | {' | '.join(cells)} |"


def stall_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the measured and predicted stalls as shares of the step, by kind, workers and load."""
    off = [100 * abs(row.stall - share_of(row)) for row in rows]
    yield "## Stall as a share of the step"
    yield ""
    yield "The stall is the step with loading less the step without. *In next()* is the part of it"
    yield "in which the training process waits for the iterator; the rest slows the step down."
    yield "*Load* is the loading of a batch over the step, of each worker if samples wait. The"
    yield f"law's share is off by {np.mean(off):.1f} points in the mean, at most by {max(off):.0f}."
    yield ""
    yield "| samples | workers | load | measured | in next() | law | law limited by |"
    yield "|---|---:|---:|---:|---:|---:|---|"
    for kind, counts in WORKERS.items():
        for workers in counts:
            for size in LOADS:
                key = (kind, workers, size)
                group = [r for r in rows if (r.point.kind, r.point.workers, r.point.load) == key]
                limits = sorted({row.loading.bottleneck(row.found.solo_s) for row in group})
                shares = (
                    [row.stall for row in group],
                    [row.found.wait_s / row.found.step_s for row in group],
                    [share_of(row) for row in group],
                )
                cells = " | ".join(f"{100 * np.mean(one):.0f} %" for one in shares)
                yield f"| {kind} | {workers} | {size:g} | {cells} | {', '.join(limits)} |"


def share_of(row: Row) -> float:
    """Return the law's stall as a share of the step."""
    return row.loading.stall_share(row.found.solo_s)


def main() -> None:
    """Write the page, or print the constants of handing a batch over."""
    parser = argparse.ArgumentParser(description="Compare predicted and measured data stalls.")
    parser.add_argument("--hand-over", action="store_true", help="Only measure these constants.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="Runs of each point.")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # 4 on 2 cores
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hand_over = fitted_hand_over()
    if options.hand_over:
        sys.stdout.write(f"{hand_over[0]:.3g} s, {hand_over[1]:.3g} bytes/s\n")
        return
    write_page(PAGE, page(measure(options.rounds), hand_over))


if __name__ == "__main__":
    main()
