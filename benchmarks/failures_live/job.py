"""Job of benchmarks/failures_live: steps of a fixed time; all of them are lost with its node.

It appends a line to a file when it starts and when it ends, to check that no job runs twice.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from presage.schedulers.live import job_progress as progress


def main() -> None:
    """Do all steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--record", type=Path, required=True)
    args = parser.parse_args()
    run = progress.begin(args.iterations)
    _record(args.record, "start")
    due_s = time.monotonic()
    for done in range(1, args.iterations + 1):
        due_s += args.step_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        run.step(done)
    _record(args.record, "end")


def _record(path: Path, event: str) -> None:
    job, _, attempt = os.environ["PRESAGE_TASK"].rpartition(".")
    node = Path(os.environ["PRESAGE_STATE"]).name
    row = {"unix_s": time.time(), "event": event, "job": job, "attempt": attempt, "node": node}
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
