"""Comparison of two runs of ``presage simulate``, policy by policy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from presage.errors import ConfigError
from presage.schedulers.report.figures import Column, make_columns
from presage.schedulers.simulator.results.schedule_metrics import Metrics

_BEFORE, _AFTER = "before", "after"
_FIELDS = tuple(field.name for field in fields(Metrics))


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of a run, and its metrics by policy."""

    settings: Mapping[str, str]
    metrics: Mapping[str, Metrics]


@dataclass(frozen=True, slots=True)
class Change:
    """Metric of one policy in two runs.

    Attributes
    ----------
    before, after, difference : str
        Texts in one unit. The difference is relative for times and ratios, in percentage points
        for percentages, and absolute for counts; "" if a value is missing.
    verdict : str
        "better", "worse", "equal" in the printed digits, or "" if the metric has no best value.
    """

    key: str
    title: str
    unit: str
    before: str
    after: str
    difference: str
    verdict: str
    values: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Changes between two runs.

    Attributes
    ----------
    settings : mapping of str to tuple of str
        Settings that differ, before and after; "" for a default.
    changes : mapping of str to list of Change
        By policy, of the policies of both runs.
    left_out : list of str
        Policies of only one of the runs.
    """

    settings: Mapping[str, tuple[str, str]]
    changes: Mapping[str, list[Change]]
    left_out: list[str]


def read_run(path: Path) -> Run:
    """Read what ``presage simulate --json`` printed.

    Raises
    ------
    ConfigError
        The file cannot be read, or is no such document.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        policies = document["policies"]
        settings = {str(name): str(text) for name, text in document.get("settings", {}).items()}
        metrics = {str(name): _metrics_of(one) for name, one in policies.items()}
    except OSError as error:
        raise ConfigError(f"--baseline {path}: {error.strerror}; name a file") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError(
            f"--baseline {path}: is no output of this version's `presage simulate --json`; "
            "simulate the earlier settings again with --json, and name the file with the output"
        ) from None
    return Run(settings, metrics)


def compare_runs(before: Run, after: Run) -> RunComparison:
    """Compare the policies that both runs have.

    Raises
    ------
    ConfigError
        The runs have no policy in common.
    """
    names = [name for name in after.metrics if name in before.metrics]
    if not names:
        raise ConfigError(
            f"--baseline: has the policies {', '.join(before.metrics) or 'none'}, this run has "
            f"{', '.join(after.metrics)}; simulate a policy that both have"
        )
    settings = {
        name: (before.settings.get(name, ""), after.settings.get(name, ""))
        for name in ({**before.settings, **after.settings} if before.settings else ())
    }
    return RunComparison(
        {name: pair for name, pair in settings.items() if pair[0] != pair[1]},
        {name: compare_metrics(before.metrics[name], after.metrics[name]) for name in names},
        sorted(before.metrics.keys() ^ after.metrics.keys()),
    )


def compare_metrics(before: Metrics, after: Metrics) -> list[Change]:
    """Return the change of each metric; ``before`` and ``after`` are of one policy."""
    return [_change(column) for column in make_columns({_BEFORE: before, _AFTER: after})]


def _metrics_of(document: Mapping[str, Any]) -> Metrics:
    found = {name: document[name] for name in _FIELDS}
    by_level = found["bytes_by_level"] or {}
    numbers = (value for name, value in found.items() if name != "bytes_by_level")
    for value in (*numbers, *by_level.values()):
        if value is not None and not math.isfinite(value):
            raise ValueError
    return Metrics(**found)


def _change(column: Column) -> Change:
    before, after = column.cells[_BEFORE], column.cells[_AFTER]
    verdict = ""
    if column.is_ranked and before.value is not None and after.value is not None:
        verdict = "better" if after.is_best else "worse" if before.is_best else "equal"
    return Change(
        column.key,
        column.title,
        column.unit,
        before.text,
        after.text,
        _difference(before.value, after.value, column.unit),
        verdict,
        (before.value, after.value),
    )


def _difference(before: float | None, after: float | None, unit: str) -> str:
    if before is None or after is None:
        return ""
    if not unit:
        return f"{after - before:+,.0f}" if after != before else "0"
    if unit == "%":
        return f"{100 * (after - before):+.1f} points"
    return f"{100 * (after / before - 1):+.1f} %" if before else ""
