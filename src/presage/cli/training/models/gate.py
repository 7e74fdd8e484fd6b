"""``presage models gate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.training.models.options import RefOrFolder, loaded_release, open_registry
from presage.cli.training.options import RegistryUri
from presage.system.text.terminal import say


@command(
    examples="""
    # The release that dvc repro made
    presage models gate

    presage models gate 7 --registry http://mlflow:5000
    """
)
def gate(
    ref: RefOrFolder = "data/release",
    features: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of feature tables.")
    ] = Path("data/features"),
    registry: RegistryUri = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Compare a release with the champion, without promoting it.

    `dvc repro` applies the same gate and promotes a release that passes.
    """
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
