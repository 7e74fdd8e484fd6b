"""Compare waiting times: python -m benchmarks.slurm --seeds 0 1 --jobs 200."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from benchmarks.slurm.replay import GPUS, LIMITS, NODES, SHORT_FIRST, replay
from benchmarks.slurm.simulated import simulated_waits_s
from benchmarks.slurm.workload import USERS, make_jobs


def main() -> None:
    """Run all replays, or those that the options select; append a line of JSON for each."""
    parser = argparse.ArgumentParser(description="Waiting times in Slurm by time limits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--speed", type=float, default=40)
    parser.add_argument("--users", nargs="+", choices=USERS, default=list(USERS))
    parser.add_argument("--limits", nargs="+", choices=LIMITS, default=list(LIMITS))
    parser.add_argument("--no-backfill", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/slurm_replay.jsonl"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        jobs = make_jobs(seed, args.jobs, devices=NODES * GPUS, load=args.load)
        for user in args.users:
            for limits in args.limits:
                begin_s = time.monotonic()
                found = replay(jobs, user, limits, speed=args.speed, backfill=not args.no_backfill)
                waits_s = np.array(found.waits_s)
                simulated_s = (
                    []  # Slurm's priorities are not simulated
                    if limits == SHORT_FIRST
                    else simulated_waits_s(
                        jobs, user, limits, found.ran_s, backfill=not args.no_backfill
                    )
                )
                row = {
                    "seed": seed, "jobs": args.jobs, "load": args.load, "speed": args.speed,
                    "users": user, "limits": limits, "backfill": not args.no_backfill,
                    "mean_min": round(float(waits_s.mean()) / 60, 2),
                    "p99_min": round(float(np.quantile(waits_s, 0.99)) / 60, 2),
                    "waits_s": [round(wait_s) for wait_s in found.waits_s],
                    "ran_s": [round(ran_s) for ran_s in found.ran_s],
                    "starts": [[one and round(one) for one in row] for row in found.starts],
                    "took_s": round(time.monotonic() - begin_s),
                }  # fmt: skip
                if simulated_s:
                    row["simulated_mean_min"] = round(float(np.mean(simulated_s)) / 60, 2)
                with args.out.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                shown = {name: value for name, value in row.items() if not isinstance(value, list)}
                print(shown, flush=True)


if __name__ == "__main__":
    main()
