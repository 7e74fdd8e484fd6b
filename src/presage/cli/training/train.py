"""``presage train``: train the predictors without DVC."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.training.options import FeaturesFolder, ModelsFolder


@command(
    examples="""
    presage train
    presage train --features data/features --models /tmp/models
    """
)
def train(
    features_dir: FeaturesFolder = Path("data/features"),
    models_dir: ModelsFolder = Path("data/models"),
    pretrained: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Pretrained networks to fine-tune on rows of GPUs."),
    ] = Path("data/pretrained"),
) -> None:
    """Train the predictors of all quantities without DVC.

    The settings are those of params.yaml. `dvc repro` trains when an input has changed, and also
    evaluates, registers and promotes the release.
    """
    from presage.features.quantities.quantity_registry import solo_quantities
    from presage.pipelines.stages import train as solo
    from presage.pipelines.stages import train_interference

    arguments = ["--features", str(features_dir), "--pretrained", str(pretrained)]
    for name in solo_quantities():
        solo.main([name, *arguments, "--target", str(models_dir / name)])
    arguments += ["--models", str(models_dir)]
    train_interference.main([*arguments, "--target", str(models_dir / "interference")])
