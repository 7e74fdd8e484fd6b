"""``presage benchmark``: forecasts of what training has never seen, beside what anyone would do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from presage.pipelines.benchmark.run import Result

_MANY = ("--train", "--test")


class ManyFiles(TyperCommand):
    """``--train A B C`` as ``--train A --train B --train C``: every word up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its values."""
        repeated: list[str] = []
        option = ""
        for word in args:
            if word.startswith("-") and option and repeated[-1] == option:
                raise typer.BadParameter(f"{option} takes at least one file, not {word}")
            if word.startswith("-"):
                option = word if word in _MANY else ""
                repeated.append(word)
            elif option and repeated[-1] != option:
                repeated += [option, word]
            else:
                repeated.append(word)
        return super().parse_args(ctx, repeated)


def benchmark(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="train-step, inference-step, train-memory, fits-in-memory, utilization, "
            "interference or scale-out.",
        ),
    ],
    train: Annotated[
        list[Path],
        typer.Option(metavar="FILE...", help="Published files, or folders of our tables."),
    ],
    test: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE...", help="What to score on; without it, a split of --train."),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            show_default="model; pair for interference; placement for scale-out",
            help="job (pair for interference), model, family, device or campaign, for scale-out "
            "also placement, count or batch: what is left out, without --test.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Of the folds and the networks.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Fit on one table, score on another; the MLP beside constant, linear, boosted trees.

    A job's run alone, which interference needs, may be in the files of either side.
    """
    from presage.cli.render import print_json
    from presage.pipelines.benchmark.run import run
    from presage.pipelines.importers.run import shown_graphs
    from presage.system.progress import training_progress

    with shown_graphs(wanted=True) as graphs, training_progress("training") as progress:
        result = run(
            task, train, test or [], graphs=graphs, progress=progress, split=split, seed=seed
        )
    if as_json:
        print_json(result.as_json())
    else:
        _show(result)


def _show(result: Result) -> None:
    from presage.system.terminal import Console, Table

    table = Table(title=f"{result.task}, split {result.split}: {result.rows} rows")
    for heading in ("", "MAPE %", "median %", "within 10 %", f"MAE ({result.unit})", "RMSLE",
                    "80 % covers", "width %", "90 % covers", "width %"):  # fmt: skip
        table.add_column(heading, justify="right" if heading else "left")
    for name, figures in {"mlp": result.mlp, **result.baselines}.items():
        table.add_row(name, *_cells(figures))
    Console().print(table)
    for name, figures in {"mlp": result.mlp, **result.baselines}.items():
        more = [f"{key} {value:.2f}" for key, value in figures.items() if key not in _COLUMNS]
        if more:
            Console().print(f"{name}: {', '.join(more)}")
    for name, slices in result.slices.items():
        if len(slices) > 1:
            worst = ", ".join(
                f"{key} {figures['mape']:.1f} ({figures['rows']:.0f})"
                for key, figures in list(slices.items())[:6]
            )
            Console().print(f"worst by {name}, MAPE % (rows): {worst}")
    Console().print(f"{result.seconds:.0f} s, seed {result.seed}")


# Figures that every task has, and digits to show.
_COLUMNS = {
    "mape": 1, "median_ape": 1, "within_10pct": 0, "mae": 4, "rmsle": 3, "coverage": 1,
    "interval_width": 1, "coverage_90": 1, "interval_width_90": 1,
}  # fmt: skip


def _cells(figures: dict[str, float]) -> Iterator[str]:
    for name, digits in _COLUMNS.items():
        value = figures.get(name)
        yield "" if value is None else f"{value:.{digits}f}"
