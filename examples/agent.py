"""Agent of a node in short: predict a job, run it, and report its outcome.

``python -m examples.agent --server localhost:50051 --rounds 3``. The reports name the release that
predicted the job, so that drift of its forecasts can be detected (docs/pipeline/drift.md).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

from examples.first_answers import features
from rich.progress import track

from presage.features.device.device import usable_cores
from presage.features.device.local_device import detect
from presage.features.placement import Placement
from presage.pipelines.profiling.running.measure import measure_solo
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.zoo import parse
from presage.serving.client.client import PresageClient
from presage.serving.outcomes.outcome import Outcome

# A cluster runs the same jobs again and again.
JOBS = (
    "mlp/w512-d3/b128/sgd",
    "resnet/w16-d8/b4/sgd",
    "vgg/w16-d8/b4/sgd",
    "unet/w8-d2-s32/b8/adam",
    "gpt/w64-d2-t64/b2/adamw",
    "lstm_lm/w64-d1-v2k/b8/sgd",
    "transformer_encoder/w64-d2-t64/b2/adamw",
    "recommender_autoencoder/i4k-w64/b32/adam",
    "pointnet/w16-p256/b4/adam",
    "neumf/u6k-w32/b512/adam",
)


def main() -> None:
    """Run the jobs and report their outcomes."""
    parser = argparse.ArgumentParser(description="Run jobs and report their outcomes.")
    parser.add_argument("--server", default="localhost:50051", metavar="HOST:PORT")
    parser.add_argument("--rounds", type=int, default=1, help="number of runs of each job")
    args = parser.parse_args()

    here = detect()
    # Measure under the machine's present load, as a scheduled job would run.
    options = RunOptions(usable_cores(), max_foreign_load=1.0, quiet_wait_s=0.0, attempts=1)
    configs = [parse(name) for name in JOBS] * args.rounds
    ratios = []
    with PresageClient(args.server) as client:
        device = client.device(here.kind)  # as measured for the release
        for config in track(configs, "running jobs"):
            job = features(config)
            (predicted,) = client.predict([Placement(job, device)])
            ran = measure_solo(config, here, options, window_s=0.5).members[0]
            outcome = Outcome(
                idempotency_key=f"{Path(__file__).stem}/{here.kind}/{time.time_ns()}",
                job=job,
                device=device,
                release_id=predicted.step_time_s.release_id,
                finished_at_unix_s=time.time(),
                compute_utilization=ran.compute_utilization,
                memory_peak_bytes=ran.memory_peak_bytes,
                step_time_median_s=ran.step_time_median_s,
                failure=ran.failure,
            )
            client.report([outcome])
            if ran.step_time_median_s is not None:
                ratios.append(ran.step_time_median_s / predicted.step_time_s.median)
    result = f"{median(ratios):.2f} times the forecast" if ratios else "nothing: all jobs failed"
    print(f"{len(configs)} outcomes reported; the median step took {result}")


if __name__ == "__main__":
    main()
