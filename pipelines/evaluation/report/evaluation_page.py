"""Report page of an assessment: its sections, their order and names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from presage.features.quantities.quantity_registry import QUANTITIES
from presage.pipelines.evaluation.assessment import Assessment
from presage.pipelines.evaluation.cross_validation import SPLITS
from presage.pipelines.evaluation.evaluation_tables import (
    GROUPS,
    UNKNOWN_DOMAIN,
    records,
)
from presage.pipelines.evaluation.report.charts import (
    CalibrationCurve,
    Scatter,
    axis_of,
    calibration_curves,
    scatter,
)
from presage.pipelines.stages.stage import write_page
from presage.system.text.page_templates import page_environment
from presage.system.text.units import quantity

MODELS = {
    "mlp": "MLP",
    "mlp_published": "MLP, published features",
    "boosted_trees": "boosted trees",
    "linear": "linear",
    "constant": "constant",
}
OURS = ("mlp", "mlp_published")
# Decimals with which figures are shown and compared; MAE has three significant digits.
SHOWN_DIGITS = {"mape": 1, "median_ape": 1, "within_10pct": 0, "mae": None}
# A coverage is marked if it differs from the promised one by more percentage points than this, and
# by more than this many standard errors for its number of rows.
COVERAGE_SLACK, STANDARD_ERRORS = 5, 2


@dataclass(frozen=True)
class Group:
    """A family, a device or a side of the domain, with its figures per split."""

    name: str
    figures: Mapping[str, Mapping[str, float]]
    place: Mapping[str, float]  # position of its median error on the table's scale, 0 to 1


@dataclass(frozen=True)
class Section:
    """Content of one predictor's section."""

    predictor: str
    title: str
    unit: str
    scatters: Mapping[str, Scatter]
    curves: Sequence[CalibrationCurve]
    groups: Mapping[str, Sequence[Group]]
    worst: Mapping[str, Sequence[Mapping[str, Any]]]
    has_domain: bool


def render(assessment: Assessment) -> str:
    """Return the page as HTML; equal for equal assessments."""
    folder = Path(__file__).parent
    environment = page_environment(folder)
    environment.filters |= {
        "percent": percent,
        "quantity": quantity,
        "mae": mae,
        "coverage_mark": coverage_mark,
    }
    sections = [_section(assessment, predictor) for predictor in assessment.judged]
    return environment.get_template("page.html.j2").render(
        metrics=assessment.metrics,
        sections=sections,
        splits=SPLITS,
        titles={name: one.title for name, one in QUANTITIES.items()},
        units={name: one.unit for name, one in QUANTITIES.items()},
        models={p: _models(splits) for p, splits in assessment.metrics.items()},
        best=_best(assessment),
        comparison=_compare_with_baselines(assessment),
        judged=[_provenance(p, rows) for p, rows in assessment.judged.items()],
        style=(folder / "page.css").read_text(),
    )


def write_report(assessment: Assessment, path: Path) -> None:
    """Write the page to a file atomically.

    Raises
    ------
    ConfigError
        The file cannot be written.
    """
    write_page(render(assessment), path)


def percent(value: float, digits: int = 1) -> str:
    """Format a percentage without its sign; a dash if it is not finite."""
    return f"{value:,.{0 if value >= 1000 else digits}f}" if math.isfinite(value) else "-"


def mae(value: float, unit: str) -> str:
    """Format a mean absolute error in its unit; a fraction, in percentage points."""
    return f"{100 * value:.1f} points" if unit == "fraction" else quantity(value, unit)


def coverage_mark(value: float, promised: float, rows: int) -> str:
    """Return ``under`` or ``over`` for a coverage, in per cent, that chance cannot explain."""
    by_chance = STANDARD_ERRORS * math.sqrt(promised * (100 - promised) / rows)
    if abs(value - promised) <= max(COVERAGE_SLACK, by_chance):
        return ""
    return "under" if value < promised else "over"


def _section(assessment: Assessment, predictor: str) -> Section:
    rows, unit = assessment.judged[predictor], QUANTITIES[predictor].unit
    axis = axis_of(rows, unit)
    by_split = {split: rows[rows["split"] == split] for split in SPLITS}
    calibration, worst = assessment.calibration, assessment.worst[predictor]
    return Section(
        predictor=predictor,
        title=QUANTITIES[predictor].title,
        unit=unit,
        scatters={split: scatter(part, unit, axis) for split, part in by_split.items()},
        curves=calibration_curves(calibration[calibration["predictor"] == predictor]),
        groups={g: _groups(g, assessment.error_by[predictor][g]) for g in GROUPS},
        worst={
            s: [_with_colocated(row) for row in records(worst[worst["split"] == s])] for s in SPLITS
        },
        has_domain=bool((rows["domain"] != UNKNOWN_DOMAIN).any()),
    )


def _with_colocated(row: dict[str, Any]) -> dict[str, Any]:
    """Add the names of co-located jobs to a row ('' for a solo job)."""
    names = row.get("together", "").partition(" @ ")[0].split(" + ")
    if row["job_id"] in names:
        names.remove(row["job_id"])
    return row | {"colocated": " + ".join(names)}


def _groups(group: str, table: pd.DataFrame) -> list[Group]:
    """Return groups in order of their median error on the least known split, worst first."""
    known = table["median_ape"][table["median_ape"].map(math.isfinite)]
    scale = max(float(known.max()), 1e-9) if len(known) else 1.0
    found = []
    for name, part in table.groupby(group, sort=True):
        figures = {row["split"]: row for row in records(part)}
        place = {s: min(float(f["median_ape"]) / scale, 1.0) for s, f in figures.items()}
        found.append(Group(str(name), figures, place))
    if group == "domain":
        return found
    return sorted(found, key=lambda g: -max(g.place.get("family", 0), 0) or g.name)


def _models(splits: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the names of a predictor's models, ours first."""
    present = {name for models in splits.values() for name in models}
    known = {name: title for name, title in MODELS.items() if name in present}
    return known | {name: name.replace("_", " ") for name in sorted(present - known.keys())}


def _best(assessment: Assessment) -> set[tuple[str, str, str, str]]:
    """Return each (predictor, split, model, figure) with the best value, at shown precision."""
    found = set()
    for predictor, splits in assessment.metrics.items():
        for split, models in splits.items():
            for figure, digits in SHOWN_DIGITS.items():
                shown = {m: _rounded(f[figure], digits) for m, f in models.items()}
                best = max(shown.values()) if figure == "within_10pct" else min(shown.values())
                found |= {(predictor, split, m, figure) for m, v in shown.items() if v == best}
    return found


def _rounded(value: float, digits: int | None) -> float:
    return float(f"{value:.3g}") if digits is None else round(value, digits)


def _compare_with_baselines(assessment: Assessment) -> dict[tuple[str, str], str]:
    """Compare the MLP's median error of a (predictor, split) with the best baseline's."""
    found = {}
    for predictor, splits in assessment.metrics.items():
        for split, models in splits.items():
            others = {m: f["median_ape"] for m, f in models.items() if m not in OURS}
            if not others or "mlp" not in models:
                continue
            name = min(others, key=lambda m: (others[m], m))
            ahead = round(others[name], 1) - round(models["mlp"]["median_ape"], 1)
            points = f"{percent(abs(ahead))} points {'better' if ahead > 0 else 'worse'} than"
            title = MODELS.get(name, name)
            found[predictor, split] = f"{points if round(ahead, 1) else 'level with'} {title}"
    return found


def _provenance(predictor: str, rows: pd.DataFrame) -> dict[str, Any]:
    once = rows[rows["split"] == SPLITS[0]]
    return {
        "title": QUANTITIES[predictor].title,
        "rows": len(once),
        "jobs": once["job_id"].nunique(),
        "families": once["family"].nunique(),
        "colocations": once["colocation"].nunique() if "colocation" in once else None,
        "devices": sorted(once["device_kind"].unique()),
        "campaigns": sorted(once["campaign"].unique()),
    }
