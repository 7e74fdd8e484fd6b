"""Scripts that start a Ray cluster on this machine, one at a time."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

# Ray finds the clusters of a machine by their processes, whichever script started them.
LOCK = Path(tempfile.gettempdir()) / "presage-test-ray.lock"
STARTS = 3  # Ray gives up a node that needs too long to start, as on a busy machine
SLOW_START = "timed out during startup"


def run_ray_driver(*arguments: str | Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run ``python arguments`` while no other test has a Ray cluster.

    A start that Ray gave up is repeated.
    """
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(STARTS):
            ended = subprocess.run(
                [sys.executable, *map(str, arguments)],
                capture_output=True, text=True, timeout=timeout_s, check=False,
            )  # fmt: skip
            if SLOW_START not in ended.stderr:
                break
    assert ended.returncode == 0, ended.stderr
    return ended
