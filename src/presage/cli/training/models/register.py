"""``presage models register``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.training.models.options import (
    Model,
    ReleaseModel,
    facts_of,
    load_folder,
    open_registry,
)
from presage.cli.training.options import RegistryUri
from presage.system.text.terminal import say


@command(
    examples="""
    presage models register data/release --registry http://mlflow:5000
    presage models register data/placement --model placement
    """
)
def register(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A release folder.")],
    registry: RegistryUri = "",
    model: Model = ReleaseModel.PREDICTORS,
    as_json: Json = False,
) -> None:
    """Register a release folder, or repair the files of a registered release.

    The release is neither evaluated nor promoted. `dvc repro` registers the releases it makes.
    """
    from presage.pipelines.stages.origin import read_origin

    opened, release = open_registry(registry, model), load_folder(folder, model)
    version = opened.register(release, release.manifest["metrics"], lambda: read_origin(folder))
    if as_json:
        print_json(facts_of(opened.resolve(version)), sort_keys=True)
    else:
        say(f"release {release.release_id} is registered as version {version}; files verified")
