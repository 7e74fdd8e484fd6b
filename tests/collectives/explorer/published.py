"""State counts that decision record 46 publishes."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/decisions/0046-ranks-agree-on-switches-in-band.md"


def published_counts() -> dict[str, tuple[int, int]]:
    """Return states and transitions by configuration; "both, all N" has the sums."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0] in ("in_band", "two_phase", "both"):
            states, transitions = (int(cell.replace(",", "")) for cell in cells[2:4])
            found[f"{cells[0]}, {cells[1]}"] = states, transitions
    return found


def published_mutants() -> dict[str, tuple[int, int]]:
    """Return the broken law and the events of the counter-example by the guard of a mutant."""
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines()]
    counted = [cells for cells in rows if len(cells) == 4 and cells[1].strip().isdigit()]
    return {cells[0].strip(): (int(cells[1]), int(cells[2])) for cells in counted}
