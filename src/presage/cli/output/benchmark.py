"""Errors of the MLP and of baselines on a public table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from presage.cli.output.json_output import print_json
from presage.system.text.terminal import Table, print_table, say

if TYPE_CHECKING:
    from presage.pipelines.benchmark.benchmark_run import Result

_WORST_SLICES = 6
# Figures that every task has, and digits to show.
_COLUMNS = {
    "mape": 1, "median_ape": 1, "within_10pct": 0, "mae": 4, "rmsle": 3, "coverage": 1,
    "interval_width": 1, "coverage_90": 1, "interval_width_90": 1,
}  # fmt: skip

_SHOWN = {*_COLUMNS, "rows"}


def print_result(result: Result, *, as_json: bool) -> None:
    """Print the figures of each model, and the worst slices of the MLP."""
    if as_json:
        print_json(result.as_json())
        return
    models = {"mlp": result.mlp, **result.baselines}
    if result.floor:
        models["floor"] = result.floor
    table = Table(title=f"{result.task}, split {result.split}: {result.rows} rows")
    for heading in ("", "MAPE %", "median %", "within 10 %", f"MAE ({result.unit})", "RMSLE",
                    "80 % covers", "width %", "90 % covers", "width %"):  # fmt: skip
        table.add_column(heading, justify="right" if heading else "left")
    for name, figures in models.items():
        table.add_row(name, *_cells(figures))
    print_table(table)
    for name, figures in models.items():
        more = [f"{key} {value:.2f}" for key, value in figures.items() if key not in _SHOWN]
        if more:
            say(f"{name}: {', '.join(more)}")
    _print_slices(result)
    say(f"{result.seconds:.0f} s, seed {result.seed}")


def _print_slices(result: Result) -> None:
    for name, slices in result.slices.items():
        if len(slices) > 1:
            worst = ", ".join(
                f"{key} {figures['mape']:.1f} ({figures['rows']:.0f})"
                for key, figures in list(slices.items())[:_WORST_SLICES]
            )
            say(f"worst by {name}, MAPE % (rows): {worst}")


def _cells(figures: dict[str, float]) -> Iterator[str]:
    for name, digits in _COLUMNS.items():
        value = figures.get(name)
        yield "" if value is None else f"{value:.{digits}f}"
