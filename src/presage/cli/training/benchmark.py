"""``presage benchmark``: errors on tables that a predictor was not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from presage.cli.command import command
from presage.cli.options.common import Json

_REPEATABLE = ("--train", "--test")


class ManyFilesCommand(TyperCommand):
    """Command that takes ``--train A B`` as ``--train A --train B``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments after the option is repeated before each of its values."""
        repeated: list[str] = []
        option = ""
        for word in args:
            if word.startswith("-") and option and repeated[-1] == option:
                raise typer.BadParameter(f"{option} takes at least one file, not {word}")
            if word.startswith("-"):
                option = word if word in _REPEATABLE else ""
                repeated.append(word)
            elif option and repeated[-1] != option:
                repeated += [option, word]
            else:
                repeated.append(word)
        return super().parse_args(ctx, repeated)


@command(
    examples="""
    # Hold out whole models
    presage benchmark train-step --train data/public/timm --split model

    # Train on one campaign, test on another
    presage benchmark interference --train data/a --test data/b
    """,
    cls=ManyFilesCommand,
)
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
        typer.Option(metavar="FILE...", help="Published files, or folders of tables."),
    ],
    test: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE...", show_default="a split of --train", help="Files to score on."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="model; interference: pair; scale-out: placement",
            help="What to hold out without --test: job (interference: pair), model, family, group "
            "(of families), device, release (of the framework), source or campaign; for scale-out "
            "also placement, count or batch.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Train the MLP and baselines on one table, and score them on another.

    The baselines are boosted trees, a linear model and a constant. The floor is what repeated
    measurements differ by. Interference needs solo measurements of each job, which may be in the
    files of --train or --test.
    """
    from presage.cli.output.benchmark import print_result
    from presage.pipelines.benchmark.benchmark_run import run
    from presage.pipelines.importers.import_run import shown_graphs
    from presage.system.text.progress import training_progress

    with shown_graphs(enabled=True) as graphs, training_progress("training") as progress:
        result = run(
            task, train, test or [], graphs=graphs, progress=progress, split=split, seed=seed
        )
    print_result(result, as_json=as_json)
