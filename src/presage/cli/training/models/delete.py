"""``presage models delete``."""

from __future__ import annotations

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.training.models.options import Model, Ref, ReleaseModel, facts_of, open_registry
from presage.cli.training.options import RegistryUri
from presage.system.text.terminal import say


@command(examples="presage models delete 3")
def delete(
    ref: Ref,
    registry: RegistryUri = "",
    model: Model = ReleaseModel.PREDICTORS,
    as_json: Json = False,
) -> None:
    """Delete a release that no alias and none of the last ten promotions refers to."""
    opened = open_registry(registry, model)
    deleted = opened.delete(opened.resolve(ref).version)
    if as_json:
        print_json(facts_of(deleted), sort_keys=True)
    else:
        say(
            f"release {deleted.release_id} (version {deleted.version}) and its run are deleted; "
            "`mlflow gc` frees the disk space"
        )
