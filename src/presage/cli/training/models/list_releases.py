"""``presage models list``."""

from __future__ import annotations

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.output.releases import print_releases
from presage.cli.training.models.options import Model, ReleaseModel, facts_of, open_registry
from presage.cli.training.options import RegistryUri
from presage.system.text.terminal import say


@command(examples="presage models list --registry http://mlflow:5000")
def list_releases(
    registry: RegistryUri = "", model: Model = ReleaseModel.PREDICTORS, as_json: Json = False
) -> None:
    """List registered releases, newest first."""
    releases = open_registry(registry, model).versions()[::-1]
    if as_json:
        print_json([facts_of(release) for release in releases], sort_keys=True)
    elif not releases:
        say("no release yet; `dvc repro` registers one")
    else:
        print_releases(releases)
