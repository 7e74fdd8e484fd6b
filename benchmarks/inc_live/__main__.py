"""Training jobs that share a switch, written to docs/benchmarks/inc_live.md.

Run ``python -m benchmarks.inc_live`` as root: about 20 minutes. Ranks, switch and arbiter run in
network namespaces with links of a limited rate. Measurements are stored in ``--output`` and not
repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.inc_live.cases import JOB_SETS, run_killed, run_set, simulate_set
from benchmarks.inc_live.page import page
from benchmarks.markdown import write_page
from presage.collectives.star_network import NetworkUnavailableError

PAGE = Path("docs/benchmarks/inc_live.md")
SIMULATED_S = 600.0


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inc_live",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--output", type=Path, default=Path(".cache/inc_live"))
    parser.add_argument("--seconds", type=float, default=30.0, help="measured time of a run")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        sets = []
        for name in JOB_SETS:
            path = args.output / f"{name.replace(' ', '_')}.json"
            found = _stored(path, partial(run_set, name, args.seconds, args.repeats))
            simulated = simulate_set(name, found["rounds"], SIMULATED_S)
            sets.append((found, simulated))
        killed = _stored(args.output / "killed.json", partial(run_killed, 2 * args.seconds))
    except NetworkUnavailableError as error:
        sys.exit(str(error))
    write_page(PAGE, page(sets, killed))


def _stored(path: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if not path.is_file():
        path.write_text(json.dumps(measure()))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


if __name__ == "__main__":
    main()
