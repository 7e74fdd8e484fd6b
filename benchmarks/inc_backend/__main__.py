"""Backend presage_inc against gloo, written to docs/benchmarks/inc_backend.md.

Run ``python -m benchmarks.inc_backend``: about 2 minutes. Two ranks on this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.inc_backend.page import page
from benchmarks.markdown import write_page

PAGE = Path("docs/benchmarks/inc_backend.md")
_NO_ARBITER = "127.0.0.1:9"  # where none is: AllReduces are numbered and run by ring
RANKS = 2


def main() -> None:
    """Measure without an arbiter and with the address of one, and write the page."""
    unaddressed, addressed = _run({}), _run({"PRESAGE_INC_ARBITER": _NO_ARBITER})
    write_page(PAGE, page(unaddressed, addressed))


def _run(environment: dict[str, str]) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={RANKS}",
        str(Path(__file__).with_name("rank.py")),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
