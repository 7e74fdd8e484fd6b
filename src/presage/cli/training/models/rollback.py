"""``presage models rollback``."""

from __future__ import annotations

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.training.models.options import (
    JournalOptions,
    Model,
    ReleaseModel,
    facts_of,
    open_registry,
    say_withdrawn,
)
from presage.cli.training.options import RegistryUri
from presage.system.text.terminal import say


@command(examples='presage models rollback --reason "slow on the H100 nodes"')
def rollback(
    journal: JournalOptions,
    registry: RegistryUri = "",
    model: Model = ReleaseModel.PREDICTORS,
    as_json: Json = False,
) -> None:
    """Make the previous release the champion again."""
    opened = open_registry(registry, model)
    before = opened.champion()
    after = opened.rollback(reason=journal.reason, by=journal.by)
    if as_json:
        document = {"champion": facts_of(after), "before": before and facts_of(before)}
        print_json(document, sort_keys=True)
    else:
        say(f"release {after.release_id} (version {after.version}) is champion again")
        say_withdrawn(before)
