"""The page of benchmarks/slurm_bridge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.slurm_bridge.memory_overruns import SHARDS_PER_GPU, Overruns
from benchmarks.slurm_bridge.response_times import RELEASE, ResponseTimes

_TIMES = """\
# The Slurm bridge: response times and memory overruns

This benchmark measures how long a submission waits for
[`presage slurm bridge`](../schedulers/slurm.md), and how often jobs take more memory than the
bridge requests for them. Written by `python -m benchmarks.slurm_bridge LUCID RELEASES`; the folders
are those of [the value of forecasts](forecast_worth.md).

## How long does a submission wait?

A real Slurm 22.05 runs `job_submit.lua`, which asks a bridge with the release in `{release}`.
Times are those that slurmctld logs, from the first byte to the parsed answer. The targets are 10 ms
for the 99th percentile on a quiet machine, and 100 ms if the bridge is dead, slow or wrong. After a
failure `job_submit.lua` asks no bridge for ten seconds; it asks each time here. "Unanswered" are
submissions without a valid answer in 80 ms, which keep their requests.
"""
_LOADED = """
"CPU" is the time of a processor that the bridge needs for an answer. The machine has 2 processors;
the load average counts processes that run or wait for one. Both targets are met. At a load of 18
the 99th percentile was 272 ms: such times are those of the scheduler of the operating system.
"""
_MEMORY = """
## How often is the requested memory exceeded?

Lucid's measured models on one GPU of type rtx-3090 are decided by the bridge's own code. With the
option `share` a job gets shards of a GPU, of {shards} in all, by the larger of its predicted memory
and utilization. `--mem` is the predicted memory in whole MiB; the bridge sets it for jobs without
GPUs only, and the same rounding is applied to the GPU's memory here. Neither source of forecasts is
trained on the family of the job that it predicts; "retrained" is trained on other families of the
same source. The bridge changes no request if the forecast is out of domain; "all" is what would
happen if it did.
"""
_READING = """
Jobs with shards stay below their memory because shards follow the utilization where that needs
more. Forecasts out of domain are exceeded more often than the risk says: the bridge does not use
them.
"""


def page(times: Sequence[ResponseTimes], overruns: Sequence[Overruns]) -> Iterator[str]:
    """Return the page as lines of Markdown."""
    yield _TIMES.format(release=RELEASE)
    yield (
        "| the bridge | submissions | unanswered | median ms | 99th percentile ms | most ms | "
        "CPU ms | load average |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for row in times:
        yield (
            f"| {row.case} | {row.submissions} | {row.unanswered} | {row.median_ms:.1f} | "
            f"{row.p99_ms:.1f} | {row.most_ms:.1f} | "
            f"{f'{row.cpu_ms:.1f}' if row.cpu_ms else '-'} | {row.load:.1f} |"
        )
    yield _LOADED + _MEMORY.format(shards=SHARDS_PER_GPU)
    yield (
        "| forecasts | risk | jobs | in domain | exceed `--mem` | get shards | exceed shards | "
        "all: exceed `--mem` | all: get shards | all: exceed shards |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for one in overruns:
        yield (
            f"| {one.forecasts} | {one.risk:.0%} | {one.jobs} | {one.in_domain} | "
            f"{one.memory_exceeded} | {one.sharded} | {one.shards_exceeded} | "
            f"{one.all_exceeded} | {one.all_sharded} | {one.all_shards_exceeded} |"
        )
    yield _READING.rstrip()
