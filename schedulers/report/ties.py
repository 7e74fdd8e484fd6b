"""Ties between policies, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from presage.schedulers.report.figures import Column
from presage.schedulers.simulator.results.schedule_metrics import Metrics

_MAX_NAMES = 3  # of policies that tie, in a cell


def best_text(column: Column) -> str:
    """Return which policies have the best value of a metric; "" if no value is the best one."""
    best = [name for name, cell in column.cells.items() if cell.is_best]
    if not column.is_ranked:
        return ""
    if not best:
        return "all equal"
    if len(best) > _MAX_NAMES:
        return f"{len(best)} of {len(column.cells)} tie"
    return best[0] if len(best) == 1 else f"{_listed(best)} tie"


def tie_sentences(metrics: Mapping[str, Metrics]) -> list[str]:
    """Return a sentence for each group of policies of which all metrics are equal."""
    groups: list[list[str]] = []
    for name, found in metrics.items():
        for group in groups:
            if metrics[group[0]] == found:
                group.append(name)
                break
        else:
            groups.append([name])
    return [f"All metrics of {_listed(group)} are equal." for group in groups if len(group) > 1]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
