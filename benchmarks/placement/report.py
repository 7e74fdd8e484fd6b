"""Text of the page: tables, ratios with intervals, and sections that are measured only once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from presage.schedulers.simulator.results.confidence import mean_with_margin


class Ratio(NamedTuple):
    """Mean ratio over seeds, with half of its 95 % interval."""

    mean: float
    margin: float


def interval_of(values: Iterable[float]) -> Ratio:
    """Return the mean and margin of some ratios."""
    return Ratio(*mean_with_margin([float(np.float64(one)) for one in values]))


def shown(ratio: Ratio, digits: int = 3) -> str:
    """Return a ratio with its margin."""
    return f"{ratio.mean:.{digits}f} ± {ratio.margin:.{digits}f}"


def table(header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield a table and an empty line."""
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


class Store:
    """Measured values as JSON files in a folder; remove a file to measure it again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def value(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return the stored value of a name; it is measured if there is none."""
        path = self.folder / f"{name}.json"
        if not path.is_file():
            found = measure()
            path.write_text(json.dumps(found, indent=1) + "\n")
            print(f"{name} done", flush=True)
        return json.loads(path.read_text())

    def lines(self, name: str, section: Callable[[], Iterable[str]]) -> list[str]:
        """Return the lines of a section."""
        found: list[str] = self.value(name, lambda: list(section()))
        return found
