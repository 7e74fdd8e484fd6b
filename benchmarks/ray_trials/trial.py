"""Trial of the benchmark: it trains a model of the job zoo and waits for the samples of each step."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

GROUPS = Path("/sys/fs/cgroup/memory")


class MemoryGroup:
    """Control group (version 1) that limits the memory of all trials on one core.

    The kernel kills a process of the group that takes more.
    """

    def __init__(self, core: int) -> None:
        self.path = GROUPS / f"presage-ray-trials-{core}"

    def create(self, memory_bytes: int) -> None:
        """Create the group; pages that a process has already move into it with the process."""
        self.path.mkdir(exist_ok=True)
        self._write("memory.limit_in_bytes", memory_bytes)
        self._write("memory.move_charge_at_immigrate", 3)

    def enter(self) -> None:
        """Move this process into the group."""
        self._write("cgroup.procs", os.getpid())

    def kills(self) -> int:
        """Return how many processes the kernel has killed."""
        rows = (self.path / "memory.oom_control").read_text().splitlines()
        return int(dict(row.split() for row in rows)["oom_kill"])

    def peak_bytes(self) -> int:
        """Return the most memory that the group had at once since this was called last."""
        peak = int((self.path / "memory.max_usage_in_bytes").read_text())
        self._write("memory.max_usage_in_bytes", 0)
        return peak

    def remove(self) -> None:
        """Remove the group, which must be empty."""
        self.path.rmdir()

    def _write(self, name: str, value: int) -> None:
        (self.path / name).write_text(str(value))


def run_trial(space: dict[str, Any]) -> dict[str, float]:
    """Train, and report to Tune; the rows of finished trials are files in the folder."""
    config = space["trial"]
    (core,) = os.sched_getaffinity(0)
    MemoryGroup(core).enter()
    began_s = time.monotonic()
    import torch

    from presage.pipelines.profiling.zoo import build, parse

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(config["number"])
    job = build(parse(config["job"]))
    job.run()
    trained_s = time.monotonic()
    for _ in range(config["iterations"]):
        if config["wait_s"]:
            time.sleep(config["wait_s"])
        job.run()
    ended_s = time.monotonic()
    row = {
        "number": config["number"],
        "kind": config["kind"],
        "core": core,
        "setup_s": trained_s - began_s,
        "step_s": (ended_s - trained_s) / config["iterations"],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    path = Path(config["folder"]) / f"{config['number']}.json"
    path.write_text(json.dumps(row))
    return {"step_s": row["step_s"]}
