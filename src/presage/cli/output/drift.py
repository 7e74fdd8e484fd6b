"""Outcomes of jobs compared with the forecasts of a release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from presage.cli.output.json_output import print_json
from presage.features.quantities.quantity_registry import INTERFERENCE, job_quantities
from presage.system.text.terminal import Name, Table, box, print_table, say

if TYPE_CHECKING:
    from presage.models.drift.drift_test import Row
    from presage.serving.outcomes.drift_watch import ReleaseOutcomes


def print_drift(checked: ReleaseOutcomes, *, show_all: bool, as_json: bool) -> None:
    """Print the errors of a release's forecasts, and where they have grown."""
    rows = checked.drift.rows()
    if as_json:
        print_json(_document(checked, rows), allow_nan=False)
    else:
        print_rows(checked, rows, show_all=show_all)


def print_rows(checked: ReleaseOutcomes, rows: Sequence[Row], *, show_all: bool) -> None:
    """Print a table of the rows, and counts of outcomes that do not count."""
    if rows:
        print_table(_table(rows, checked.predictor.release_id, show_all=show_all))
    for line in _remarks(checked):
        say(line)
    drifted = [row for row in rows if row.drift]
    if drifted:
        repaired = sum(row.is_repaired for row in drifted)
        if repaired:
            say(f"forecasts with offsets keep their coverage in {repaired} of {len(drifted)}")
        say(f"drift: {len(drifted)} of {len(rows)}; `dvc repro` trains on the reported outcomes")


def _table(rows: Sequence[Row], release_id: str, *, show_all: bool) -> Table:
    title = f"outcomes and forecasts of release {release_id}"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("jobs", "runs", "MAPE %", "in 80 %", "ratio", "change", "with offsets"):
        table.add_column(name, justify="right")
    table.add_column("drift")
    known = (*job_quantities().values(), INTERFERENCE)
    labels = {one.forecast_field: one.label for one in known} | {"in_domain": "in domain"}
    quantity = ""
    for row in rows:
        if not (show_all or row.drift or not row.slice_name):
            continue
        if row.quantity != quantity:
            quantity = row.quantity
            table.add_section()
            table.add_row(labels.get(quantity, quantity), style="bold")
        table.add_row(
            Name(f" {row.slice_name or 'all'}"), f"{row.jobs:,}", f"{row.runs:,}",
            _with_expected(row.mape, row.promised_mape),
            _with_expected(row.coverage, row.promised_coverage),
            _times(row.ratio), _times(row.change), _offset_errors(row), row.drift,
            style="red" if row.drift else None,
        )  # fmt: skip
    return table


def _remarks(checked: ReleaseOutcomes) -> list[str]:
    """Return the numbers of outcomes that count, and of those that do not."""
    counted = checked.outcomes - checked.other_releases - checked.without_release
    lines = []
    if checked.outcomes and not counted:
        lines.append("this release cannot be checked yet: no outcome names it")
    lines.append(f"{counted:,} of {checked.outcomes:,} outcomes name this release")
    if checked.without_release:
        lines.append(
            f"{checked.without_release:,} outcomes name no release and do not count; report the "
            "release_id of the forecast"
        )
    if checked.refused:
        lines.append(f"{checked.refused:,} outcomes are invalid; see `presage outcomes ingest`")
    if checked.missing:
        lines.append(
            f"{checked.missing:,} outcomes of co-located jobs give no slowdown: no solo run of "
            "the job was reported before"
        )
    return lines


def _document(checked: ReleaseOutcomes, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "release": checked.predictor.release_id,
        "drift": any(row.drift for row in rows),
        "outcomes": checked.outcomes,
        "of_other_releases": checked.other_releases,
        "of_no_release": checked.without_release,
        "refused": checked.refused,
        "never_reported_alone": checked.missing,
        "rows": [asdict(row) for row in rows],
    }


def _offset_errors(row: Row) -> str:
    """Return MAPE and coverage of forecasts with the offsets of earlier outcomes."""
    if row.offset_mape is None or row.offset_coverage is None:
        return "-"
    return f"{row.offset_mape:.3g}, {row.offset_coverage:.0f}"


def _with_expected(found: float | None, expected: float | None) -> str:
    text = "-" if found is None else f"{found:.3g}"
    return text if expected is None else f"{text} ({expected:.2g})"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
