"""Changes of the champion: a journal entry first, then the aliases.

The aliases follow the journal's last valid entry that is not a deletion. The process that appended
an entry moves the aliases, reads the journal again, and repeats until the applied entry is the last
one. If the process dies in between, the entry is not marked done, and the next process that opens
the registry for writing applies it. If the last entry is done but the alias differs, the alias was
moved by other means: this is recorded in the journal, and the alias stays.

A version is deleted by an entry too, so that no promotion can happen between the check for
references and the deletion. A promotion appended first invalidates the entry of the deletion. A
promotion appended later follows the deletion, applies it first, and finds no such version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from presage.errors import RegistryError
from presage.models.registry.promotion_journal import (
    NO_ENTRY,
    OUTSIDE,
    Entry,
    Move,
    append_entry,
    current_user,
    mark_done,
    read_journal,
    select_moves,
)
from presage.models.registry.registered_release import read_aliases, read_versions
from presage.models.registry.uri import CHALLENGER, CHAMPION, PREVIOUS, RELEASE_ID

_MAX_ROUNDS = 20  # of reading again, before the registry is reported as unstable
# A process with an outdated entry may still move the alias, at most this much later: MLflow's
# client tries a call twice, with ten seconds each.
_MAX_DELAY_MS = 30_000
_UNSTABLE = "the champion keeps changing; check `presage models history`, then try again"


@dataclass(frozen=True)
class State:
    """State of the registry.

    Attributes
    ----------
    entries : sequence of Entry
        Valid journal entries, oldest first.
    aliases : mapping of str to int
        Version that each alias of the model names.
    releases : mapping of int to str
        Release id of each version; "" for versions that Presage did not register.
    """

    entries: Sequence[Entry]
    aliases: Mapping[str, int]
    releases: Mapping[int, str]

    @property
    def moves(self) -> Sequence[Entry]:
        """Entries that are not deletions."""
        return select_moves(self.entries)

    @property
    def last(self) -> Entry | None:
        """The last move."""
        return self.moves[-1] if self.moves else None

    @property
    def last_number(self) -> int:
        """Number of the last valid entry, a deletion or not."""
        return self.entries[-1].number if self.entries else NO_ENTRY

    @property
    def champion(self) -> int | None:
        """Version with the alias ``champion``."""
        return self.aliases.get(CHAMPION)


def read_state(client: Any) -> State:
    """Return the current journal, aliases and versions."""
    entries = read_journal(client)
    aliases = read_aliases(client) or {}
    versions = read_versions(client)
    return State(entries, aliases, {int(v.version): v.tags.get(RELEASE_ID, "") for v in versions})


def reconcile(client: Any) -> State:
    """Make journal and aliases agree: apply pending entries, record changes made by other means.

    Raises
    ------
    RegistryError
        Other processes keep changing the registry.
    """
    for _ in range(_MAX_ROUNDS):
        state = read_state(client)
        last = state.last
        deletions = [e for e in state.entries if e.deletes is not None and not e.done]
        if deletions:  # before the entries that follow them
            for entry in deletions:
                _delete(client, entry)
        elif last is None and state.champion is None:
            return state
        elif last is None:
            _record_outside_change(client, state, "the champion is older than the journal")
        elif last.done and state.champion == last.to_version:
            return state
        elif _is_pending(state, last):
            apply_entry(client, last)
        else:
            _record_outside_change(client, state, "the alias was moved without Presage")
    raise RegistryError(_UNSTABLE)


def commit_move(client: Any, move: Move, follows: int) -> None:
    """Append a move after the entry that it follows, and apply it.

    Raises
    ------
    RegistryError
        Another entry was first; nothing was changed.
    """
    token = append_entry(client, move, follows)
    entries = read_journal(client)
    ours = next((entry for entry in entries if entry.token == token), None)
    if ours is None:
        raise conflict_error(entries, follows)
    if ours.deletes is not None:
        _delete(client, ours)
    else:
        apply_entry(client, select_moves(entries)[-1])


def conflict_error(entries: Sequence[Entry], follows: int) -> RegistryError:
    """Return the error of a move whose predecessor already has a successor."""
    first = next(entry for entry in entries if entry.number > follows)
    what = f"release {first.to_release}" if first.to_release else "no release"
    what = f"{what} was made champion" if first.deletes is None else "a version was deleted"
    reason = f": {first.reason}" if first.reason else ""
    return RegistryError(
        f"{what} first, by {first.by} at {first.at} (journal entry "
        f"{first.number}, {first.verdict}{reason}); nothing was changed. Check `presage models "
        "journal`, then run the command again if needed"
    )


def apply_entry(client: Any, entry: Entry) -> None:
    """Move the aliases as an entry says, and as entries that were appended meanwhile say."""
    for _ in range(_MAX_ROUNDS):
        _update_aliases(client, entry, read_state(client))
        last = select_moves(read_journal(client))[-1]
        if last.number == entry.number:
            mark_done(client, entry)
            return
        entry = last
    raise RegistryError(_UNSTABLE)


def _is_pending(state: State, last: Entry) -> bool:
    """Return whether a crash, or a process with an outdated entry, explains the alias."""
    if last.to_version is not None and last.to_version not in state.releases:
        return False  # the version was deleted by other means
    if not last.done:
        return state.champion in (last.from_version, last.to_version)
    return any(
        entry.to_version == state.champion and last.created_ms - entry.created_ms < _MAX_DELAY_MS
        for entry in state.moves[:-1]
    )


def _record_outside_change(client: Any, state: State, reason: str) -> None:
    """Append an entry for the current alias; of two concurrent ones, one is valid."""
    last, now = state.last, state.champion
    move = Move(
        from_version=last.to_version if last else None,
        from_release=last.to_release if last else "",
        to_version=now,
        to_release=state.releases.get(now, "") if now is not None else "",
        verdict=OUTSIDE,
        reason=reason,
        by=f"unknown; recorded by {current_user()}",
        withdraws=False,
    )
    append_entry(client, move, state.last_number)


def _delete(client: Any, entry: Entry) -> None:
    """Delete the version that an entry names, and its run, unless they are already deleted."""
    version = str(entry.deletes)
    with _ignore_missing():
        run_id = client.get_model_version(client.model, version).run_id
        with _ignore_missing():
            client.delete_run(run_id)
        client.delete_model_version(client.model, version)
    mark_done(client, entry)


@contextmanager
def _ignore_missing() -> Iterator[None]:
    """Suppress MLflow's error for an object that does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise


def _update_aliases(client: Any, entry: Entry, state: State) -> None:
    """Set aliases and tags as an entry says; idempotent."""
    old, new = entry.from_version, entry.to_version
    if new in state.releases and entry.verdict != OUTSIDE:
        client.set_registered_model_alias(client.model, CHAMPION, new)
    if new in state.releases:
        client.delete_model_version_tag(client.model, str(new), "withdrawn_at")
        client.set_model_version_tag(client.model, str(new), "promoted_at", entry.at)
    if old in state.releases:
        client.set_registered_model_alias(client.model, PREVIOUS, old)
        if entry.withdraws:
            client.set_model_version_tag(client.model, str(old), "withdrawn_at", entry.at)
    elif PREVIOUS in state.aliases and entry.verdict != OUTSIDE:
        client.delete_registered_model_alias(client.model, PREVIOUS)
    if new is not None and state.aliases.get(CHALLENGER) == new:
        client.delete_registered_model_alias(client.model, CHALLENGER)
