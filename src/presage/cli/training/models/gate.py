"""``presage models gate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.output.releases import print_makespans
from presage.cli.training.models.options import (
    RELEASE_OR_FOLDER,
    Model,
    ReleaseModel,
    loaded_release,
    open_registry,
)
from presage.cli.training.options import RegistryUri
from presage.errors import ConfigError
from presage.system.text.terminal import say


@command(
    examples="""
    # The release that dvc repro made
    presage models gate

    presage models gate 7 --registry http://mlflow:5000
    presage models gate data/placement --model placement
    """
)
def gate(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="REF|DIR",
            show_default="data/release, or data/placement",
            help=RELEASE_OR_FOLDER,
        ),
    ] = "",
    features: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="data/features",
            help="Folder of feature tables, for predictors.",
        ),
    ] = None,
    registry: RegistryUri = "",
    model: Model = ReleaseModel.PREDICTORS,
    as_json: Json = False,
) -> None:
    """Compare a release with the champion, without promoting it.

    `dvc repro` applies the same gate and promotes a release that passes. A placement release is
    compared with every heuristic, too.
    """
    if model is ReleaseModel.PLACEMENT:
        _gate_placement(ref or "data/placement", features, registry, as_json=as_json)
    else:
        tables = features or Path("data/features")
        _gate_predictors(ref or "data/release", tables, registry, as_json=as_json)


def _gate_predictors(ref: str, features: Path, registry: str, *, as_json: bool) -> None:
    from presage.models.gate.release_gate import GatePolicy
    from presage.pipelines.stages.gate_decision import print_table
    from presage.pipelines.stages.promote import preview_promotion
    from presage.pipelines.stages.stage import read_params

    policy = read_params("promote", GatePolicy)
    opened = open_registry(registry)
    with loaded_release(ref, registry) as release:
        decided, decision = preview_promotion(release, features, uri=opened.uri, policy=policy)
    if as_json:
        print_json(decided, sort_keys=True)
        return
    if decision is not None:
        print_table(decision)
    say(f"release {release.release_id} would be {decided['outcome']}: {decided['reason']}")


def _gate_placement(ref: str, features: Path | None, registry: str, *, as_json: bool) -> None:
    from presage.pipelines.stages.stage import read_params
    from presage.placement.stage.placement_gate import PlacementGatePolicy
    from presage.placement.stage.promote_placement import preview_placement

    if features is not None:
        raise ConfigError(
            "--features: placement releases are compared on simulated clusters, which their "
            "training settings define; leave it out"
        )
    policy = read_params("placement.gate", PlacementGatePolicy)
    opened = open_registry(registry, ReleaseModel.PLACEMENT)
    with loaded_release(ref, registry, ReleaseModel.PLACEMENT) as release:
        decided = preview_placement(release, uri=opened.uri, policy=policy)
    if as_json:
        print_json(decided, sort_keys=True)
        return
    print_makespans(decided["figures"], decided["verdicts"])
    say(f"release {release.release_id} would be {decided['outcome']}: {decided['reason']}")
