"""``presage models history``."""

from __future__ import annotations

from dataclasses import asdict

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.output.releases import print_history
from presage.cli.training.models.options import Model, ReleaseModel, open_registry
from presage.cli.training.options import RegistryUri
from presage.system.text.terminal import say


@command(examples="presage models history --json")
def history(
    registry: RegistryUri = "", model: Model = ReleaseModel.PREDICTORS, as_json: Json = False
) -> None:
    """Show promotions, rollbacks and deletions, newest first, with author and reason."""
    entries = open_registry(registry, model).journal()[::-1]
    if as_json:
        print_json([asdict(entry) for entry in entries], sort_keys=True)
    elif not entries:
        say("no entry yet: the champion was never changed")
    else:
        print_history(entries)
