"""``python -m tests.fuzzing [READER...]``: fuzz what reads files from outside.

Each input is read in a process with limits on time and memory. What finds a fault is made smaller
and written to ``--faults``; docs/benchmarks/fuzzing.md says what was found so far.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from presage.system.text.progress import training_progress
from tests.fuzzing.fuzz import Tally, fuzz, save
from tests.fuzzing.readers import READERS


def main() -> int:
    """Exit code 1 where there is a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"of {', '.join(READERS)}")
    parser.add_argument("--inputs", type=int, default=10_000, help="for each reader (%(default)s)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="at most, for each reader")
    parser.add_argument("--seed", type=int, default=0, help="other inputs (%(default)s)")
    parser.add_argument("--faults", type=Path, default=Path("faults"), help="folder (%(default)s)")
    parser.add_argument("--json", action="store_true", help="for a program to read")
    args = parser.parse_args()
    if unknown := [name for name in args.readers if name not in READERS]:
        parser.error(f"no reader {unknown[0]!r}; use one of {', '.join(READERS)}")
    rows = []
    for name in args.readers or READERS:
        with training_progress(name) as move:

            def on_input(tally: Tally, move: Any = move) -> None:
                move(tally.inputs, args.inputs)

            tally = fuzz(
                name, most_inputs=args.inputs, most_s=args.seconds, seed=args.seed,
                on_input=on_input,
            )  # fmt: skip
        rows.append(_row(tally, [str(path) for path in save(tally, args.faults)]))
        if not args.json:
            _show(rows[-1])
    if args.json:
        print(json.dumps(rows, indent=2))
    return int(any(row["faults"] for row in rows))


def _row(tally: Tally, paths: list[str]) -> dict[str, Any]:
    faults = [fault for _, fault in sorted(tally.faults.items())]
    return {
        "reader": tally.reader,
        "inputs": tally.inputs,
        "read": tally.read,
        "refused": tally.refused,
        "different_refusals": len(tally.errors),
        "seconds": round(tally.seconds, 1),
        "slowest_s": round(tally.slowest_s, 3),
        "faults": [
            {"what": fault.what, "said": fault.said, "inputs": fault.count, "file": path}
            for fault, path in zip(faults, paths, strict=True)
        ],
    }


def _show(row: dict[str, Any]) -> None:
    print(
        f"{row['reader']}: {row['inputs']} inputs in {row['seconds']} s, {row['read']} read, "
        f"{row['refused']} refused in {row['different_refusals']} ways, slowest "
        f"{row['slowest_s']} s, {len(row['faults'])} faults"
    )
    for fault in row["faults"]:
        print(f"  {fault['what']} ({fault['inputs']} inputs): {fault['said'][:200]}")
        print(f"    {fault['file']}")


if __name__ == "__main__":
    raise SystemExit(main())
