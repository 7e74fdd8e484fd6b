"""Release for one core of this machine: a campaign on it, and predictors trained on its rows.

``python -m benchmarks.ray_trials.device_release FOLDER measure`` and ``FOLDER train`` are processes
of their own. The first uses one core, so that the kind of the device is cpu-1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from presage.pipelines.profiling.campaign.campaign import run_campaign
from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
from presage.pipelines.profiling.running.run_options import RunOptions

FAMILIES = ("dcgan", "gpt", "lstm_lm", "mlp", "pointnet", "resnet", "transformer_encoder", "unet",
            "vgg", "vit")  # fmt: skip
BUDGET_S = 420.0
# The machine may have other programs, which run at a lower priority: they are not waited for.
OPTIONS = RunOptions(threads=1, quiet_wait_s=0.0, attempts=1)
COMMITTED = ("data/profiles/cpu-2", "data/profiles/cpu-2-zoo")


def tables(output: Path) -> Path:
    """Return the folder of the campaign."""
    return output / "tables"


def measure(output: Path) -> None:
    """Measure jobs on the first core of this machine."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    settings = CampaignSettings(campaign="ray-trials", budget_s=BUDGET_S, families=FAMILIES)
    run_campaign(tables(output), settings, _report, OPTIONS)


def _report(progress: object) -> None:
    print(progress, file=sys.stderr)


def train(output: Path) -> Path:
    """Train on the campaign and on the committed ones, and return the folder of the release."""
    from presage.models.training import baselines
    from presage.pipelines.stages import (
        build_release,
        evaluate,
        featurize,
        train_interference,
    )
    from presage.pipelines.stages import train as train_stage

    features, models = str(output / "features"), output / "models"
    evaluation, release = str(output / "evaluation"), output / "release"
    pretrained = ["--pretrained", "data/pretrained"]
    featurize.main([*COMMITTED, str(tables(output)), "--target", features, *pretrained])
    for name in ("compute_utilization", "memory", "step_time", "power"):
        target = ["--target", str(models / name)]
        train_stage.main([name, "--features", features, *target, *pretrained])
    common = ["--features", features, "--models", str(models)]
    target = ["--target", str(models / "interference")]
    train_interference.main([*common, *target, *pretrained])
    # Baselines that nothing here reads: hundreds of trees would take a quarter of an hour.
    make = baselines.make_boosted_trees
    few = {"boosted_trees": lambda: make().set_params(max_iter=3)}
    baselines.BASELINES = {**baselines.BASELINES, **few}
    evaluate.main([*common, "--target", evaluation])
    build_release.main([*common, "--evaluation", evaluation, "--target", str(release), *pretrained])
    return release


if __name__ == "__main__":
    if sys.argv[2] == "measure":
        measure(Path(sys.argv[1]))
    else:
        train(Path(sys.argv[1]))
