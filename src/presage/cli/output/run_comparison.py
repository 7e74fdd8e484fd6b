"""Comparison of two runs of ``presage simulate``, on the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from presage.system.text.terminal import Table, print_table, say, styled

if TYPE_CHECKING:
    from presage.schedulers.report.run_comparison import Change, RunComparison

_STYLES = {"better": "green", "worse": "red"}


def print_comparison(comparison: RunComparison) -> None:
    """Print the settings that differ, and a table for each policy of both runs."""
    for name, (before, after) in comparison.settings.items():
        say(f"setting {name}: {before or 'default'} before, {after or 'default'} now")
    for policy, changes in comparison.changes.items():
        print_table(_table(policy, changes))
    if comparison.left_out:
        say(f"not compared, because only one run has them: {', '.join(comparison.left_out)}")


def comparison_document(comparison: RunComparison) -> dict[str, Any]:
    """Return a comparison as JSON content; values are in seconds, fractions and counts."""
    return {
        "settings": {
            name: {"before": before or None, "after": after or None}
            for name, (before, after) in comparison.settings.items()
        },
        "policies": {
            policy: {change.key: _change_document(change) for change in changes}
            for policy, changes in comparison.changes.items()
        },
        "left_out": comparison.left_out,
    }


def _change_document(change: Change) -> dict[str, Any]:
    before, after = change.values
    return {
        "before": before,
        "after": after,
        "difference": None if before is None or after is None else after - before,
        "verdict": change.verdict or None,
    }


def _table(policy: str, changes: Sequence[Change]) -> Table:
    table = Table(title=f"{policy}, compared with the earlier run")
    for title in ("", "before", "now", "difference", ""):
        table.add_column(title, justify="right" if title else "left")
    for one in changes:
        unit = f" ({one.unit})" if one.unit else ""
        verdict = styled(one.verdict, _STYLES.get(one.verdict, ""))
        table.add_row(f"{one.title}{unit}", one.before, one.after, one.difference, verdict)
    return table
