"""Documents of the gate's decision: for the decision file, the registry and the terminal.

The file has no time, no run id and no microseconds, so equal releases, tables and policies give
equal bytes. The microseconds, and the slices without a change, are in MLflow's copy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from presage.models.gate import release_gate as gate
from presage.models.gate.release_gate import Decision, Row

PROMOTED, NOT_PROMOTED = "promoted", "not promoted"
WOULD_BE_PROMOTED = "would be promoted"  # an experiment
MAX_SLICES = 40  # rows of slices in the file, and in the tag, whose size MLflow limits

Document = dict[str, Any]


def make_document(
    challenger: str, champion: str | None, decision: Decision, input_digest: str
) -> Document:
    """Return the document of a decision; named numbers are DVC's metrics.

    Parameters
    ----------
    challenger, champion : str
        Release ids.
    decision : Decision
    input_digest : str
        Digest of everything that the decision depends on; the key ``asked``.
    """
    rows = [row for row in decision.rows if not row.slice_name]
    notable = [row for row in decision.rows if row.slice_name and row.verdict != gate.WITHIN]
    figures: dict[str, dict[str, float | None]] = {}
    for row in rows:
        if row.metric != "latency_us":
            figures.setdefault(row.predictor, {})[row.metric] = _rounded(row.challenger)
    return {
        "challenger": challenger,
        "champion": champion,
        "asked": input_digest,
        "outcome": PROMOTED if decision.promote else NOT_PROMOTED,
        "reason": decision.reason,
        "figures": figures,
        "verdicts": {
            verdict.replace(" ", "_"): sum(row.verdict == verdict for row in decision.rows)
            for verdict in (gate.BETTER, gate.WITHIN, gate.NOT_COMPARED, *gate.REJECTING_VERDICTS)
        },
        "rows": [_reproducible(asdict(row)) for row in (*rows, *notable[:MAX_SLICES])],
    }


def decision_rows(decision: Decision) -> list[dict[str, Any]]:
    """Return all rows of a decision, with slices without a change and with microseconds."""
    return [asdict(row) for row in decision.rows]


def mark_experiment(decided: Document, name: str) -> Document:
    """Return the document of an experiment, which the gate may accept but does not promote."""
    if decided["outcome"] != PROMOTED:
        return decided
    reason = f"{decided['reason']}; `dvc exp apply {name}`, then `dvc repro` promotes it"
    return decided | {"outcome": WOULD_BE_PROMOTED, "reason": reason}


def summarize_verdict(decided: Document) -> dict[str, Any]:
    """Return outcome and numbers of better and worse figures, which DVC shows as metrics."""
    found = decided["verdicts"]
    refusing = sum(found.get(name.replace(" ", "_"), 0) for name in gate.REJECTING_VERDICTS)
    return {
        "outcome": decided["outcome"],
        "better": found.get(gate.BETTER, 0),
        "worse": refusing,
    }


def read_decision(target: Path, release_id: str) -> Document | None:
    """Return the decision file if it is about this release and not of an experiment."""
    try:
        found: Document = json.loads(target.read_text())
    except (OSError, ValueError):
        return None
    is_about = isinstance(found, Mapping) and found.get("challenger") == release_id
    return found if is_about and "experiment" not in found else None


def print_table(decision: Decision) -> None:
    """Print the table of figures, within the 80 columns that DVC gives a stage.

    Figures that reject the release are first, with the amount by which they miss their limit, then
    those that are better. Of the slices, only those with a change are shown.
    """
    from presage.system.text.terminal import Console, Table

    shown = Table(title="gate, on the held-out jobs", pad_edge=False)
    for title in ("metric", "champion", "challenger", "change or limit", "verdict"):
        justify: Any = "left" if title in ("metric", "verdict") else "right"
        shown.add_column(title, justify=justify, no_wrap=True)
    styles = {gate.BETTER: "green"} | dict.fromkeys(gate.REJECTING_VERDICTS, "red")
    section = ""
    for row in rows_by_importance(decision):
        name = f"{row.predictor} on {row.slice_name}" if row.slice_name else row.predictor
        if name != section:
            section = name
            shown.add_section()
            shown.add_row(name, style="bold")
        before = "-" if row.champion is None else f"{row.champion:.4g}"
        cells = (row.metric, before, f"{row.challenger:.4g}", _format_limits(row), row.verdict)
        shown.add_row(*cells, style=styles.get(row.verdict))
    console = Console()
    console.print(shown)
    slices = {(r.predictor, r.slice_name): r.verdict for r in decision.rows if r.slice_name}
    if slices:
        console.print(
            f"{len(slices)} slices by family and device; those not shown are within tolerance"
        )


def rows_by_importance(decision: Decision) -> list[Row]:
    """Return the rows to show: rejecting, better, then the others; of slices only changes.

    Rejecting rows are in the order of the amounts by which they miss their limits.
    """

    def rank(row: Row) -> tuple[int, float]:
        if row.verdict in gate.REJECTING_VERDICTS:
            return 0, -(gate.miss(row) or 0.0)
        return 1 if row.verdict == gate.BETTER else 2, 0.0

    shown = [row for row in decision.rows if not row.slice_name or row.verdict != gate.WITHIN]
    return sorted(shown, key=rank)


def _format_limits(row: Row) -> str:
    """Return by how much a limit is missed, else the interval of the change, else the bounds."""
    if row.verdict in gate.REJECTING_VERDICTS and (missed := gate.miss(row)) is not None:
        limit, side = gate.missed_limit(row)
        return f"{100 * missed:.{0 if missed >= 0.1 else 1}f} % {side} {limit:.3g}"
    if row.change_low is not None and row.change_high is not None:
        return f"{100 * row.change_low:+.0f} to {100 * row.change_high:+.0f} %"
    if row.at_least is not None and row.at_most is not None:
        return f"{row.at_least:.4g} to {row.at_most:.4g}"
    low = "" if row.at_least is None else f">= {row.at_least:.4g}"
    return low if row.at_most is None else f"<= {row.at_most:.4g}"


def _reproducible(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without what differs between runs: microseconds and last digits."""
    is_time = row["metric"] == "latency_us"
    return {
        name: (None if is_time else _rounded(value)) if isinstance(value, float) else value
        for name, value in row.items()
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
