"""AllReduce through the software switch against a ring, written to docs/benchmarks/inc_switch.md.

Run ``python -m benchmarks.inc_switch`` as root: about 5 minutes. Ranks and the switch run in
network namespaces with links of a limited rate. Measurements are stored in ``--output`` and not
repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.inc_switch.page import page
from benchmarks.inc_switch.runs import CASES, Row, run
from benchmarks.markdown import write_page
from presage.collectives.star_network import NetworkUnavailableError

PAGE = Path("docs/benchmarks/inc_switch.md")


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inc_switch",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--output", type=Path, default=Path(".cache/inc_switch"))
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for case in CASES:
        path = args.output / ("_".join(map(str, case)) + ".json")
        if not path.is_file():
            print(f"measuring {case}", flush=True)
            try:
                row = run(*case, repeats=args.repeats)
            except NetworkUnavailableError as error:
                sys.exit(str(error))
            path.write_text(json.dumps(row._asdict()))
        rows.append(Row(**json.loads(path.read_text())))
    write_page(PAGE, page(rows))


if __name__ == "__main__":
    main()
