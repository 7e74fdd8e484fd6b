"""Tables computed from out-of-fold forecasts: error by group, and calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from presage.models.calibration.error_metrics import interval_metrics, point_metrics
from presage.models.drift.drift_test import ERROR_RATIO
from presage.models.training.fit import LEVELS
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.stages.fit_solo import QUANTILES

# Groups of rows besides the split, and the column of each.
GROUPS = {"family": "family", "device": "device_kind", "domain": "domain"}
# Limits on slices of the guarantee. Clients choose the names of devices and families.
_MOST_SLICES, _LONGEST_NAME = 500, 240
IN_DOMAIN, OUT_OF_DOMAIN, UNKNOWN_DOMAIN = "in domain", "out of domain", "not said"


def figures(rows: pd.DataFrame) -> dict[str, float]:
    """Return error of the medians, coverage and width of the intervals, of measured rows."""
    y, quantiles = rows["measured"].to_numpy(), rows[QUANTILES].to_numpy()
    found = point_metrics(y, quantiles[:, LEVELS.index(0.5)])
    for level, coverage in cv.COVERAGES.items():
        low = LEVELS.index(level)
        interval = interval_metrics(y, quantiles[:, low], quantiles[:, len(LEVELS) - 1 - low])
        found |= {f"{name}_{coverage:.0%}": value for name, value in interval.items()}
    return found


def judged(forecasts: pd.DataFrame) -> pd.DataFrame:
    """Return the measured rows of the served feature set.

    Adds ``predicted`` (the median), ``error`` (signed, relative to the measured value) and
    ``domain``; for a co-location ``together``, its members without their machine. ``reason`` is
    '' in tables without it.
    """
    rows = forecasts[(forecasts["features"] == "full") & forecasts["measured"].notna()]
    rows = rows.reset_index(drop=True)
    rows["predicted"] = rows["q0.5"]
    rows["error"] = rows["predicted"] / rows["measured"].where(rows["measured"] != 0) - 1
    if "in_domain" in rows:
        rows["domain"] = np.where(rows["in_domain"].astype(bool), IN_DOMAIN, OUT_OF_DOMAIN)
    else:
        rows["domain"] = UNKNOWN_DOMAIN
    rows["reason"] = rows["reason"].fillna("") if "reason" in rows else ""
    if "colocation" in rows:
        names = rows["colocation"], rows["campaign"], rows["machine"]
        rows["together"] = [
            c.removesuffix(f" in {g} on {m}") for c, g, m in zip(*names, strict=True)
        ]
    return rows


def error_by(group: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return figures of judged rows per split and value of one of ``GROUPS``.

    ``leaning`` is the signed median error in percent: below zero, forecasts are too low.
    """
    found = [
        {"split": split, group: value}
        | figures(part)
        | {"leaning": float(100 * part["error"].median())}
        for (split, value), part in rows.groupby(["split", GROUPS[group]], sort=True)
    ]
    return pd.DataFrame(found)


def calibration_guarantee(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the calibration guarantee of a predictor: its errors on unseen jobs, by slice.

    Parameters
    ----------
    rows : DataFrame
        As returned by :func:`judged`.

    Returns
    -------
    dict
        "" (all rows), "device ..." and "family ..." -> ``rows``; in per cent ``mape``, rows
        ``below`` and ``above`` the 80 % interval, and ``in_domain`` if the rows contain it.
        :mod:`presage.models.drift.drift_test` compares outcomes with it. Devices and families are
        limited to the largest. "class ..." -> ``domain_error_ratio`` of a device class.
    """
    ratios = domain_error_ratios(rows)
    rows = rows[rows["split"] == "job"]
    slices = {"": rows}
    for group in ("device", "family"):
        parts = sorted(rows.groupby(GROUPS[group]), key=lambda part: (-len(part[1]), part[0]))
        named = [part for part in parts if len(str(part[0])) <= _LONGEST_NAME]
        slices |= {f"{group} {name}": part for name, part in named[:_MOST_SLICES]}
    return {name: _guarantee_slice(part) for name, part in slices.items()} | ratios


def domain_error_ratios(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the error out of domain over that in domain, by slice ("class gpu").

    It is of left-out families, because hardly any row is out of domain without its job only. A
    class with few rows in or out of domain has none.
    """
    out = {}
    for name, of_class in rows[rows["split"] == "family"].groupby("device_class"):
        parts = [of_class[of_class["domain"] == one] for one in (OUT_OF_DOMAIN, IN_DOMAIN)]
        if min(map(len, parts)) < cv.MIN_SIMILAR:
            continue
        far, near = (
            point_metrics(one["measured"].to_numpy(), one["predicted"].to_numpy())["mape"]
            for one in parts
        )
        out[f"class {name}"] = {ERROR_RATIO: float(f"{far / near:.3g}")}
    return out


def _guarantee_slice(rows: pd.DataFrame) -> dict[str, float]:
    measured, low, high = (rows[name].to_numpy() for name in ("measured", "q0.1", "q0.9"))
    median = rows["predicted"].to_numpy()
    out = {
        "rows": float(len(rows)),
        "mape": point_metrics(measured, median)["mape"],
        "below": 100 * float((measured < low).mean()),
        "above": 100 * float((measured > high).mean()),
    }
    if (rows["domain"] != UNKNOWN_DOMAIN).all():
        out["in_domain"] = float(100 * (rows["domain"] == IN_DOMAIN).mean())
    return {name: float(f"{value:.5g}") for name, value in out.items()}


def calibration_rows(forecasts: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the observed share of measured values below each quantile, and the promised share."""
    rows: list[dict[str, Any]] = []
    for predictor, table in forecasts.items():
        full = table[(table["features"] == "full") & table["measured"].notna()]
        for split, part in full.groupby("split"):
            for level, name in zip(LEVELS, QUANTILES, strict=True):
                below = (part["measured"] <= part[name]).to_numpy()
                rows.append(
                    {"predictor": predictor, "split": split, "promised": level,
                     "observed": round(float(below.mean()), 6)}
                )  # fmt: skip
    return pd.DataFrame(rows)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as mappings from column to value."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]
