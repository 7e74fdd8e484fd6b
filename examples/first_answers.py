"""Last step of `make run`: serve the champion, predict new jobs, then run them.

Three jobs and a co-location of two of them have sizes that no campaign measures. The forecasts
come from a server over gRPC, the measurements from processes on this machine.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.table import Table

from presage.cli.output.forecasts import interval
from presage.errors import ProfilingError
from presage.features.colocation import Colocation
from presage.features.device.device import Share, usable_cores
from presage.features.device.local_device import detect
from presage.features.forecast import Forecast
from presage.features.job.job_description import JobFeatures, public_version
from presage.features.placement import Placement
from presage.models.registry.champion import find_champion_id
from presage.models.registry.uri import configured_uri
from presage.pipelines.profiling.graph_tracing import trace
from presage.pipelines.profiling.running.measure import measure_colocated, measure_solo
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.zoo import JobConfig, parse
from presage.pipelines.stages.stage import run_stage
from presage.serving.client.client import PresageClient
from presage.serving.client.job_features import from_graph
from presage.system.text.units import quantity

JOBS = (
    "resnet/w16-d8/b20/sgd",
    "transformer_encoder/w128-d4-t64/b6/adamw",
    "recommender_autoencoder/i20k-w200/b48/adam",
)


def main() -> None:
    """Predict, measure, and print both."""
    console = Console(width=120)
    configs = [parse(name) for name in JOBS]
    jobs = [features(config) for config in configs]
    local_device = detect()
    with server() as target, PresageClient(target) as client:
        device = client.device(local_device.kind)
        predictions = client.predict([Placement(job, device) for job in jobs])
        pair = Colocation(device, tuple(jobs[:2]), (Share(mode="time-slice"),) * 2)
        together = client.predict_interference([pair])[0]
        release_id = client.release().release_id
    options = RunOptions(threads=usable_cores())
    table = Table(
        title=f"release {release_id} on {local_device.kind}: forecast (80 % interval), measured"
    )
    for name in ("job", "what", "forecast", "measured", "error", "inside"):
        table.add_column(name, justify="right" if name in ("measured", "error") else "left")
    with console.status("running the jobs"):
        for config, prediction in zip(configs, predictions, strict=True):
            member = measure_solo(config, local_device, options, window_s=1.5).members[0]
            if member.failure:
                raise ProfilingError(f"{config.name}: {member.failure} ({member.message})")
            compare(
                table, config.name, "step time", prediction.step_time_s, member.step_time_median_s
            )
            compare(table, "", "memory", prediction.memory_bytes, member.memory_peak_bytes)
            compare(
                table, "", "compute", prediction.compute_utilization, member.compute_utilization
            )
        shared = measure_colocated(configs[:2], local_device, options, window_s=3.0)
        for config, member, forecast in zip(
            configs[:2], shared.members, together.slowdowns, strict=True
        ):
            if member.step_time_median_s is None or member.solo_step_time_s is None:
                raise ProfilingError(f"{config.name}, shared: {member.failure} ({member.message})")
            slowdown = member.step_time_median_s / member.solo_step_time_s
            compare(table, f"{config.name}, shared", "slowdown", forecast, slowdown)
    console.print(table)


def features(config: JobConfig) -> JobFeatures:
    """Return the features of a job, traced on the meta device without running it."""
    graph = trace(config)
    return from_graph(
        graph,
        name=config.name,
        family=config.family,
        batch_size=config.batch_size,
        iterations=1000,
        framework_version=public_version(str(torch.__version__)),
    )


def compare(table: Table, job: str, what: str, forecast: Forecast, measured: float | None) -> None:
    """Add a forecast and its measurement as a row."""
    assert measured is not None, "a run that did not fail was measured"
    error = 100 * (forecast.median / measured - 1)
    inside = "yes" if forecast.low <= measured <= forecast.high else "no"
    found = quantity(measured, forecast.unit)
    table.add_row(job, what, interval(forecast), found, f"{error:+.0f} %", inside)


@contextmanager
def server() -> Iterator[str]:
    """Run `presage serve` on a free port, and yield its address."""
    registry = configured_uri()
    what = ["--registry", registry]
    if find_champion_id(registry) is None:
        print("the gate accepted no release (see data/decision.json): serving the newest one")
        what = ["--release", "data/release"]
    command = [sys.executable, "-m", "presage", "serve", *what, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit(process.wait())
        sys.stdout.write(line)
        try:
            yield line.split()[-1]
        finally:
            process.terminate()
            process.wait(timeout=30)


if __name__ == "__main__":
    run_stage(main)
