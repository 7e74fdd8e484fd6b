"""Coverage and cost of predicted starts, written to docs/benchmarks/what_if.md.

Run ``python -m benchmarks.what_if LUCID RELEASES``; the folders are those of
``benchmarks.forecast_worth``. Answers are stored in ``--output`` and not computed again; with
``--stored`` the page is written of those. All settings take an hour of one core. The page has the
results of ``benchmarks.what_if.busy_periods`` if they are in the same folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from benchmarks.forecast_worth.runs import SEEDS, TRACES
from benchmarks.what_if.page import page
from benchmarks.what_if.probes import NOISE, Probe, Setting, probe_cluster
from benchmarks.what_if.speed import measure_speed

PAGE = Path("docs/benchmarks/what_if.md")
POLICIES = ("fifo", "backfill", "sjf", "las")
# Of one trace, which shows what each part of the knowledge is worth.
ABLATIONS: tuple[dict[str, Any], ...] = (
    {"noise": 0.0}, {"progress": False}, {"learns": False}, {"arrivals": False}
)  # fmt: skip
_ABLATED = ("vc_0e4a51", ("fifo", "sjf"))


def main() -> None:
    """Ask what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.what_if",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("lucid", type=Path)
    parser.add_argument("releases", type=Path)
    parser.add_argument("--output", type=Path, default=Path(".cache/what_if"))
    parser.add_argument("--forecast", choices=("shipped", "retrained"), default="shipped")
    parser.add_argument("--trace", choices=tuple(TRACES), help="only this trace, without a page")
    parser.add_argument("--stored", action="store_true", help="compute nothing")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    chosen = [one for one in settings(args.forecast) if args.trace in (None, one.trace)]
    found = dict(_probed(chosen, args.lucid, args.releases, args.output, args.stored))
    if args.trace:
        return
    speed = args.output / "speed.json"
    if not speed.is_file():
        speed.write_text(json.dumps(measure_speed()))
    busy_path = args.output / "busy_periods.json"
    busy = json.loads(busy_path.read_text()) if busy_path.is_file() else {}
    PAGE.write_text("\n".join(page(found, json.loads(speed.read_text()), busy, NOISE)) + "\n")


def settings(forecast: str) -> Iterator[Setting]:
    """Yield all settings, one seed after the other."""
    for seed in SEEDS:
        for policy in POLICIES:
            for trace in TRACES:
                yield Setting(trace, policy, forecast, seed, noise=NOISE)
    trace, policies = _ABLATED
    for seed in SEEDS:
        for options in ABLATIONS:
            for policy in policies:
                yield Setting(trace, policy, forecast, seed, **{"noise": NOISE, **options})


def _probed(
    settings: Sequence[Setting], lucid: Path, releases: Path, output: Path, stored: bool
) -> Iterator[tuple[Setting, list[Probe]]]:
    """Yield the probes of each setting."""
    for setting in settings:
        name = "_".join(map(str, astuple(setting))).replace(" ", "-")
        path = output / f"{name}.json"
        if not path.is_file():
            if stored:
                continue
            probes = probe_cluster(setting, lucid, releases)
            path.write_text(json.dumps([asdict(probe) for probe in probes]))
            print(setting, len(probes), flush=True)
        yield setting, [Probe(**row) for row in json.loads(path.read_text())]


if __name__ == "__main__":
    main()
