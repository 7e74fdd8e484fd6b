"""Trial of the benchmark: it trains a model of the job zoo, and waits for its samples."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any, Self

POLL_S = 0.05
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """Limit of the memory of all trials on one node, of which the newest is killed if it exceeds.

    The memory is the sum of the resident sizes of their processes, sampled 20 times a second. Pages
    that trials share count for each of them, as they do in forecasts.

    Attributes
    ----------
    peak_bytes : dict of int to int
        Most memory of the trials on each core at once.
    kills : int
        Trials that were killed.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self.peak_bytes: dict[int, int] = {}
        self.kills = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopping.wait(POLL_S):
            by_core: dict[int, list[tuple[int, int]]] = {}
            for path in sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime_ns):
                core, pid = map(int, path.name.split("-"))
                by_core.setdefault(core, []).append((pid, _resident_bytes(pid)))
            for core, trials in by_core.items():
                total = sum(size for _, size in trials)
                self.peak_bytes[core] = max(total, self.peak_bytes.get(core, 0))
                if total > self._limit_bytes:
                    newest = [pid for pid, size in trials if size][-1]
                    (self._folder / f"{core}-{newest}").unlink()
                    os.kill(newest, signal.SIGKILL)
                    self.kills += 1


def _resident_bytes(pid: int) -> int:
    """Return the resident size of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def run_trial(space: dict[str, Any]) -> dict[str, float]:
    """Train, and report to Tune; the rows of finished trials are files in the folder."""
    config = space["trial"]
    (core,) = os.sched_getaffinity(0)
    mark = Path(config["folder"]) / "running" / f"{core}-{os.getpid()}"
    mark.touch()
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
    mark.unlink()
    return {"step_s": row["step_s"]}
