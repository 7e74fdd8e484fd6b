"""Histories of a live cluster under random faults, checked as Jepsen does.

Run ``python -m benchmarks.cluster_history`` as root, from the repository root; 20 seeds of 110
faults take about 40 minutes on two cores, and nothing else has to be quiet. Each seed starts a
controller, three agents and their jobs as processes, lets clients work while faults are injected,
heals everything, and checks the recorded history by the laws of ``tests/history/checker/laws.py``.
Results are stored by seed in ``--output``; a seed with a result is not run again. At the end the
page docs/benchmarks/cluster_history.md is written from all results; ``--page`` writes only the
page.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.history.checker.laws import check, summary
from tests.history.record import read_history
from tests.history.runner.run import Settings, run

from benchmarks.cluster_history.page import page
from benchmarks.markdown import write_page

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/benchmarks/cluster_history.md"


def main() -> None:
    """Run the seeds that have no result yet, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster_history",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--output", type=Path, default=Path(".cache/cluster_history"))
    parser.add_argument("--first", type=int, default=1, help="First seed (default: 1).")
    parser.add_argument("--seeds", type=int, default=20, help="Number of seeds (default: 20).")
    parser.add_argument("--faults", type=int, default=110, help="Faults a seed (default: 110).")
    parser.add_argument(
        "--gap-s", type=float, default=0.4, help="Mean time between faults (default: 0.4)."
    )
    parser.add_argument("--page", action="store_true", help="Write the page, and run nothing.")
    args = parser.parse_args()
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _leave)
    for seed in range(args.first, args.first + args.seeds) if not args.page else ():
        result = output / f"seed-{seed}.json"
        if not result.exists():
            settings = Settings(seed, faults=args.faults, gap_s=args.gap_s)
            _write(result, measured(output, settings))
    results = [json.loads(path.read_text()) for path in output.glob("seed-*.json")]
    write_page(PAGE, page(sorted(results, key=lambda one: int(one["seed"]))))


def measured(output: Path, settings: Settings) -> dict[str, Any]:
    """Run a seed and check its history, which is kept only where a law is broken."""
    began_s = time.time()
    folder = output / f"run-{settings.seed}"

    def progress(message: str) -> None:
        print(f"seed {settings.seed}, {time.time() - began_s:.0f} s: {message}", flush=True)

    path = run(folder, settings, progress)
    ran_s = time.time() - began_s
    history = read_history(path)
    meta = next(entry.value for entry in history if entry.kind == "meta")
    violations = check(history)
    for law, how in violations:
        progress(f"VIOLATION of {law!r}: {how}")
    if violations:
        with path.open("rb") as plain, gzip.open(f"{path}.gz", "wb") as packed:
            shutil.copyfileobj(plain, packed)
        path.unlink()
    else:
        shutil.rmtree(folder)
    progress("no violation" if not violations else f"{len(violations)} violations")
    return {
        "seed": settings.seed, "commit": _commit(),
        "began": time.strftime("%F", time.gmtime(began_s)),
        "ran_s": round(ran_s, 1), "cores": os.cpu_count(), "settings": meta,
        "violations": [list(one) for one in violations], **summary(history),
    }  # fmt: skip


def _commit() -> str:
    words = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def _write(path: Path, result: dict[str, Any]) -> None:
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps(result, indent=1))
    partial.replace(path)


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(143)  # so that what runs is ended, and taken away


if __name__ == "__main__":
    main()
