"""Errors of the predictors and of the baselines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presage.cli.output.json_output import print_json
from presage.system.text.terminal import Table, print_table, say

if TYPE_CHECKING:
    from presage.pipelines.evaluation.assessment import Assessment

# Title of a column: metric and digits. Baselines have no intervals.
_FIGURES = {
    "MAPE %": ("mape", 1),
    "median %": ("median_ape", 1),
    "within 10 %": ("within_10pct", 0),
    "in 80 %": ("coverage_80%", 0),
    "80 % width": ("interval_width_80%", 0),
    "in 90 %": ("coverage_90%", 0),
    "90 % width": ("interval_width_90%", 0),
}


def print_assessment(assessment: Assessment, report: Path | None, *, as_json: bool) -> None:
    """Print the error of each predictor by split, in and out of its domain."""
    if as_json:
        print_json(assessment.as_json())
        return
    for predictor in assessment.judged:
        print_table(_predictor_table(assessment, predictor))
    if report is not None:
        say(f"{report}: the whole evaluation as a page")


def _predictor_table(assessment: Assessment, predictor: str) -> Table:
    splits = assessment.metrics[predictor]
    table = Table(title=predictor.replace("_", " "))
    for name in ("held out", "model", *_FIGURES):
        table.add_column(name, justify="left" if name in ("held out", "model") else "right")
    for split in sorted(splits, reverse=True):  # jobs before families
        for model, found in _mlp_first(splits[split]).items():
            table.add_row(split, model.replace("_", " "), *_cells(found))
        table.add_section()
    domain = assessment.error_by[predictor]["domain"]
    rows = domain.sort_values(["split", "domain"], ascending=[False, True])
    for row in rows.to_dict("records"):
        if row["domain"] != "not said":
            model = f"mlp, {row['rows']} {row['domain']}"
            table.add_row(str(row["split"]), model, *_cells(row))
    return table


def _mlp_first(models: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(models.items(), key=lambda item: (not item[0].startswith("mlp"), item[0])))


def _cells(found: Mapping[Any, Any]) -> list[str]:
    return [f"{found[k]:,.{digits}f}" if k in found else "" for k, digits in _FIGURES.values()]
