"""``presage evaluate``: errors of the predictors on held-out jobs and families."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.training.options import FeaturesFolder, ModelsFolder


@command(
    examples="""
    presage evaluate
    presage evaluate --report evaluation.html
    """
)
def evaluate(
    features_dir: FeaturesFolder = Path("data/features"),
    models_dir: ModelsFolder = Path("data/models"),
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder for metrics.json and plots. Baselines in it are reused."
        ),
    ] = Path("data/evaluation"),
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="HTML report to write.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Evaluate the predictors on held-out jobs and families, and compare them with baselines."""
    from presage.cli.output.evaluation import print_assessment
    from presage.pipelines.evaluation.assessment import assess
    from presage.pipelines.evaluation.report.evaluation_page import write_report
    from presage.pipelines.stages import evaluate as stage
    from presage.pipelines.stages.stage import check_report_path

    if report is not None:
        check_report_path(report)  # before the minutes that baselines take
    forecasts = stage.read_forecasts(models_dir)
    metrics = stage.read_previous_metrics(out, forecasts)
    if metrics is None:
        metrics = stage.evaluate(*stage.read_features(features_dir), forecasts)
    stage.write_evaluation(metrics, forecasts, stage.read_loss_curves(models_dir), out)
    assessment = assess(metrics, forecasts)
    if report is not None:
        write_report(assessment, report)
    print_assessment(assessment, report, as_json=as_json)
