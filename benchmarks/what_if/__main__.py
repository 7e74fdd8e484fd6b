"""Coverage and cost of predicted starts, written to docs/benchmarks/what_if.md.

Run ``python -m benchmarks.what_if LUCID RELEASES``; the folders are those of
``benchmarks.forecast_worth``. Answers are stored in ``--output`` and not computed again. All
settings take about five hours of one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from benchmarks.forecast_worth.runs import TRACES
from benchmarks.what_if.page import page
from benchmarks.what_if.probes import Probe, Setting, probe_cluster
from benchmarks.what_if.speed import measure_speed

PAGE = Path("docs/benchmarks/what_if.md")
POLICIES = ("fifo", "backfill", "sjf", "srtf")
ABLATIONS: tuple[dict[str, Any], ...] = (
    {}, {"progress": False}, {"learns": False}, {"arrivals": False}
)  # fmt: skip


def main() -> None:
    """Ask what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.what_if",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("lucid", type=Path)
    parser.add_argument("releases", type=Path)
    parser.add_argument("--output", type=Path, default=Path(".cache/what_if"))
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--samples", type=int, default=25)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    settings = [
        Setting(trace, policy, moments=args.moments, samples=args.samples, **options)
        for options in ABLATIONS
        for trace in TRACES
        for policy in POLICIES
    ]
    found = dict(_probed(settings, args.lucid, args.releases, args.output))
    speed = args.output / "speed.json"
    if not speed.is_file():
        speed.write_text(json.dumps(measure_speed()))
    PAGE.write_text("\n".join(page(found, json.loads(speed.read_text()))) + "\n")


def _probed(
    settings: Sequence[Setting], lucid: Path, releases: Path, output: Path
) -> Iterator[tuple[Setting, list[Probe]]]:
    """Yield the probes of each setting."""
    for setting in settings:
        name = "_".join(map(str, astuple(setting))).replace(" ", "-")
        path = output / f"{name}.json"
        if not path.is_file():
            probes = probe_cluster(setting, lucid, releases)
            path.write_text(json.dumps([asdict(probe) for probe in probes]))
            print(setting, len(probes), flush=True)
        yield setting, [Probe(**row) for row in json.loads(path.read_text())]


if __name__ == "__main__":
    main()
