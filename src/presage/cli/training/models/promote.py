"""``presage models promote``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.output.releases import gate_result
from presage.cli.training.models.options import (
    JournalOptions,
    Model,
    Ref,
    ReleaseModel,
    facts_of,
    open_registry,
    say_withdrawn,
)
from presage.cli.training.options import RegistryUri
from presage.errors import RegistryError
from presage.system.text.terminal import say

if TYPE_CHECKING:
    from presage.models.registry.registered_release import RegisteredRelease


@command(
    examples="""
    presage models promote 7
    presage models promote 7 --force --reason "the champion is wrong on A100"
    """
)
def promote(
    ref: Ref,
    journal: JournalOptions,
    force: Annotated[
        bool,
        typer.Option("--force", help="Promote a release that failed the gate. Needs --reason."),
    ] = False,
    registry: RegistryUri = "",
    model: Model = ReleaseModel.PREDICTORS,
    as_json: Json = False,
) -> None:
    """Make a release the champion, which servers then load."""
    opened, is_forced = open_registry(registry, model), force and bool(journal.reason.strip())
    # Refused before MLflow is imported for the first write, which takes seconds.
    _verdict(opened.resolve(ref), opened.champion(), is_forced=is_forced)
    follows = opened.reconcile()
    before, release = opened.champion(), opened.resolve(ref)
    verdict = _verdict(release, before, is_forced=is_forced)
    after = opened.promote(
        release.version, verdict=verdict, reason=journal.reason, by=journal.by, follows=follows
    )
    if as_json:
        document = {"champion": facts_of(after), "before": before and facts_of(before)}
        print_json(document, sort_keys=True)
    else:
        _say_promoted(release, before)


def _verdict(
    release: RegisteredRelease, before: RegisteredRelease | None, *, is_forced: bool
) -> str:
    """Return the verdict to record."""
    from presage.models.registry.promotion_journal import FORCED, MANUAL

    if _has_passed(release):
        return MANUAL
    if not is_forced and not _is_same(release, before):
        raise RegistryError(
            f"release {release.release_id} did not pass the gate ({gate_result(release)}); to "
            "promote it anyway, give --force --reason TEXT"
        )
    return FORCED


def _say_promoted(release: RegisteredRelease, before: RegisteredRelease | None) -> None:
    if _is_same(release, before):
        say(f"release {release.release_id} is already champion: nothing changed")
        return
    forced = "" if _has_passed(release) else ", without passing the gate"
    say(
        f"release {release.release_id} (version {release.version}) is now champion, by hand"
        f"{forced}; last gate result: {gate_result(release)}"
    )
    say_withdrawn(before)


def _has_passed(release: RegisteredRelease) -> bool:
    return (release.decision or {}).get("outcome") == "promoted"


def _is_same(release: RegisteredRelease, other: RegisteredRelease | None) -> bool:
    return other is not None and other.version == release.version
