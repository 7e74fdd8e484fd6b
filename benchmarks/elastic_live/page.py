"""Page of benchmarks/elastic_live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from benchmarks.elastic_live.delays import (
    LiveJobs,
    decided_sizes,
    end_delays_s,
    growth_delays_s,
    growth_losses_s,
    start_delays_s,
)
from benchmarks.elastic_live.devices import STARTUP_S, Size
from benchmarks.elastic_live.trace import (
    ELASTIC,
    EVERY_S,
    FIXED,
    LONGEST_S,
    POLICY,
    SHORTEST_S,
    Submission,
)

REQUIRED_PERCENT = 10.0
Simulated = Mapping[str, Mapping[str, Any]]

INTRODUCTION = """\
# Elastic jobs live and simulated

This benchmark runs the same trace of elastic jobs on a live cluster and in the simulator, with the
same policy and forecasts. It checks whether both choose the same sizes, and whether job completion
times (JCT) agree within {required:g} %. Written by `python -m benchmarks.elastic_live POLLUX`.

- **Real**: the controller with its policy, two agents, the processes of workers and leaders, their
  connections, resizes, preemptions with checkpoints. Each node has two devices.
- **Emulated**: the devices. A worker trains a tiny model, and sleeps after each step until the
  measured step of the job's model on as many devices and nodes is over. Delays of the tiny model's
  own computation and communication are made up for by shorter sleeps; stops for a resize are not.
- **Speed-up curves**: Pollux's measured steps on T4s
  ([importing](../pipeline/importing.md#pollux)) of resnet-50, resnet-18 and bert, at the largest
  measured batch of each. The tables are the forecasts of both sides (`--predictor FOLDER`), the
  time of a step of the live jobs, and the simulator's ground truth.
- **Jobs**: for each seed {elastic} elastic jobs, of 1 to 4 devices, and {fixed} of a fixed size, in
  a drawn order. Each requests 1 or 2 devices, on which it runs for {shortest:g} to {longest:g} s.
  They arrive every {every:g} s in the mean. The policy is `{policy}` on both sides.
- **Startup**: a worker joins {startup:g} s after its process began. Importing PyTorch and its
  optimizers takes 2.6 s of a core, and several times as long on this machine, which has two cores
  and ran other work at the same time. Agents ran without control groups.
- **Simulated**: the jobs arrive when they were submitted to the live cluster. The time that workers
  need to start and jobs to end is the median of the live run. It is the simulator's `startup_s`: a
  job that starts waits for it, and one that grows continues at its former size meanwhile.
- The traces were drawn before any run, and all of them are reported.
"""


class SeedRun(NamedTuple):
    """Outcomes of a trace.

    Attributes
    ----------
    steps_s : mapping of str to mapping
        Seconds of a step by size, for each job.
    immediate : mapping
        Simulated with the default costs of a resize.
    """

    seed: int
    jobs: Sequence[Submission]
    steps_s: Mapping[str, Mapping[Size, float]]
    live: LiveJobs
    simulated: Simulated
    immediate: Simulated


def page(runs: Sequence[SeedRun], notes: str) -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION.format(
        required=REQUIRED_PERCENT, elastic=ELASTIC, fixed=FIXED, shortest=SHORTEST_S,
        longest=LONGEST_S, every=EVERY_S, policy=POLICY, startup=STARTUP_S,
    )  # fmt: skip
    yield from _summary(runs)
    yield from _delay_table(runs)
    yield notes
    for run in runs:
        yield from _jobs_table(run)


def live_jct_s(one: Mapping[str, Any]) -> float:
    """Return the time from the submission of a live job to its end."""
    return float(one["ended_unix_s"] - one["submitted_unix_s"])


def live_sizes(one: Mapping[str, Any]) -> list[int]:
    """Return the sizes of a live job; 0 while it waits again, and at its end."""
    return [change.gpus for change in decided_sizes(one)]


def simulated_sizes(one: Mapping[str, Any]) -> list[int]:
    """Return the sizes of a simulated job."""
    return [gpus for _, gpus in one["sizes"]]


def _summary(runs: Sequence[SeedRun]) -> Iterator[str]:
    yield "## Results\n"
    yield (
        "| seed | mean JCT live | simulated | difference | each job, mean | largest "
        "| same sizes | changes of size live | simulated | finished |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for run in runs:
        yield _summary_row(run)
    live = mean(live_jct_s(one) for run in runs for one in run.live.values())
    simulated = mean(one["jct_s"] for run in runs for one in run.simulated.values())
    each = [abs(error) for run in runs for error in _errors(run.live, run.simulated)]
    same = sum(_same(run, run.simulated) for run in runs)
    yield ""
    yield (
        f"All {len(each)} jobs: mean JCT {live:.1f} s live, {simulated:.1f} s simulated "
        f"({_percent(simulated / live)})."
    )
    yield (
        f"A job's JCT differs by {mean(each) * 100:.1f} % in the mean. "
        f"{sum(error <= REQUIRED_PERCENT / 100 for error in each)} jobs are within "
        f"{REQUIRED_PERCENT:g} %."
    )
    yield f"{same} jobs have the same sequence of sizes.\n"


def _summary_row(run: SeedRun) -> str:
    live = mean(live_jct_s(one) for one in run.live.values())
    simulated = mean(one["jct_s"] for one in run.simulated.values())
    each = [abs(error) for error in _errors(run.live, run.simulated)]
    same = _same(run, run.simulated)
    counts = [
        sum(len(sizes(of[one.job_id])) - 2 for one in run.jobs)
        for sizes, of in ((live_sizes, run.live), (simulated_sizes, run.simulated))
    ]
    finished = sum(one["phase"] == "FINISHED" for one in run.live.values())
    return (
        f"| {run.seed} | {live:.1f} s | {simulated:.1f} s | {_percent(simulated / live)} "
        f"| {mean(each) * 100:.1f} % | {max(each) * 100:.1f} % | {same} of {len(run.jobs)} "
        f"| {counts[0]} | {counts[1]} | {finished} |"
    )


def _errors(live: LiveJobs, simulated: Simulated) -> list[float]:
    return [simulated[job]["jct_s"] / live_jct_s(one) - 1 for job, one in live.items()]


def _same(run: SeedRun, simulated: Simulated) -> int:
    """Return the number of jobs with the same sequence of sizes."""
    return sum(live_sizes(one) == simulated_sizes(simulated[job]) for job, one in run.live.items())


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"


def _delay_table(runs: Sequence[SeedRun]) -> Iterator[str]:
    yield "## What does the start of workers cost?\n"
    yield (
        "| seed | start to first step | growth to first step | lost by a growth | last step to end "
        "| mean JCT by the simulator's defaults | same sizes |"
    )
    yield "|---|---|---|---|---|---:|---:|"
    for run in runs:
        live = mean(live_jct_s(one) for one in run.live.values())
        immediate = mean(one["jct_s"] for one in run.immediate.values())
        yield (
            f"| {run.seed} | {_range(start_delays_s(run.live))} "
            f"| {_range(growth_delays_s(run.live))} "
            f"| {_range(growth_losses_s(run.live, run.steps_s))} "
            f"| {_range(end_delays_s(run.live))} "
            f"| {immediate:.1f} s ({_percent(immediate / live)}) "
            f"| {_same(run, run.immediate)} of {len(run.jobs)} |"
        )
    yield ""


def _range(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{mean(values):.1f} s ({min(values):.1f} to {max(values):.1f}, {len(values)} times)"


def _jobs_table(run: SeedRun) -> Iterator[str]:
    yield f"## Seed {run.seed}\n"
    yield "| job | model | devices | arrival | live | | simulated | | difference |"
    yield "|---|---|---|---:|---|---:|---|---:|---:|"
    first_s = min(one["submitted_unix_s"] for one in run.live.values())
    for job in run.jobs:
        live, simulated = run.live[job.job_id], run.simulated[job.job_id]
        changes = [(change.unix_s - first_s, change.gpus) for change in decided_sizes(live)]
        devices = f"{job.gpus}, 1 to {job.most}" if job.is_elastic else f"{job.gpus}, fixed"
        yield (
            f"| {job.job_id} | {job.model.removeprefix('pollux/')} | {devices} "
            f"| {live['submitted_unix_s'] - first_s:.0f} s | {_history(changes)} "
            f"| {live_jct_s(live):.1f} s | {_history(simulated['sizes'])} "
            f"| {simulated['jct_s']:.1f} s | {_percent(simulated['jct_s'] / live_jct_s(live))} |"
        )
    yield ""


def _history(changes: Sequence[tuple[float, int]]) -> str:
    return ", ".join(f"{gpus} at {time_s:.0f}" for time_s, gpus in changes)
