"""The one way in which the champion changes: a journal entry first, then the aliases after it.

The aliases are a projection of the journal's last valid entry that is no deletion. Who wrote it
moves them, reads the journal again, and repeats until the entry that was carried out is the last
one. A process that dies in between leaves an entry that is not marked done; whoever next opens the
registry for writing carries it out. An alias that somebody moved by other means, which an entry
that is done tells from a crash, is written down as what it is, and stays.

A version is deleted by an entry, too, so that no promotion can come between the look whether
anything refers to it and its end. A promotion written first makes the deletion's entry invalid;
one written later follows the deletion, has carried it out before, and finds no such version.
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
from presage.models.registry.uri import CHALLENGER, CHAMPION, MODEL, PREVIOUS, RELEASE_ID

_MAX_ROUNDS = 20  # of reading again, before it is said that the registry does not come to rest
# A process that was overtaken between its entry and its alias may move the alias after all, at
# most so much later: a call is given ten seconds, twice.
_MAX_DELAY_MS = 30_000


@dataclass(frozen=True)
class State:
    """What the registry says.

    Attributes
    ----------
    entries : sequence of Entry
        Valid ones, oldest first.
    aliases : mapping of str to int
        The version that each alias of the model names.
    releases : mapping of int to str
        Release id of each version that is there; "" of one that Presage did not register.
    """

    entries: Sequence[Entry]
    aliases: Mapping[str, int]
    releases: Mapping[int, str]

    @property
    def moves(self) -> Sequence[Entry]:
        """Entries that are no deletions."""
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
        """Version that the alias names."""
        return self.aliases.get(CHAMPION)


def read_state(client: Any) -> State:
    """Journal, aliases and versions, as they are now."""
    entries = read_journal(client)
    aliases = read_aliases(client) or {}
    versions = read_versions(client)
    return State(entries, aliases, {int(v.version): v.tags.get(RELEASE_ID, "") for v in versions})


def reconcile(client: Any) -> State:
    """Make journal and aliases agree: carry out what a crash left, note what came from outside.

    Raises
    ------
    RegistryError
        Others keep changing it.
    """
    for _ in range(_MAX_ROUNDS):
        state = read_state(client)
        last = state.last
        deletions = [e for e in state.entries if e.deletes is not None and not e.done]
        if deletions:  # before anything that follows them
            for entry in deletions:
                _delete(client, entry)
        elif last is None and state.champion is None:
            return state
        elif last is None:
            _record_outside_change(client, state, "it was champion before there was a journal")
        elif last.done and state.champion == last.to_version:
            return state
        elif _is_pending(state, last):
            apply_entry(client, last)
        else:
            _record_outside_change(client, state, "the alias was moved without Presage")
    raise RegistryError("the champion keeps changing; look at `presage models history`, try again")


def commit_move(client: Any, move: Move, follows: int) -> None:
    """Write a move down after the entry that it follows, and carry it out.

    Raises
    ------
    RegistryError
        Another entry came first; nothing was changed.
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
    """What to tell who meant to follow an entry that another one follows already."""
    first = next(entry for entry in entries if entry.number > follows)
    what = f"release {first.to_release}" if first.to_release else "no release"
    what = f"{what} was made champion" if first.deletes is None else "a version was deleted"
    why = f": {first.reason}" if first.reason else ""
    return RegistryError(
        f"{what} first, by {first.by} at {first.at} (journal entry "
        f"{first.number}, {first.verdict}{why}); nothing was changed. Look at `presage models "
        "journal`, and run the command again if it is still wanted"
    )


def apply_entry(client: Any, entry: Entry) -> None:
    """Move the aliases as an entry says, and as those say that came in meanwhile."""
    for _ in range(_MAX_ROUNDS):
        _update_aliases(client, entry, read_state(client))
        last = select_moves(read_journal(client))[-1]
        if last.number == entry.number:
            mark_done(client, entry)
            return
        entry = last
    raise RegistryError("the champion keeps changing; look at `presage models history`, try again")


def _is_pending(state: State, last: Entry) -> bool:
    """Whether the alias is where a crash, or a process that was overtaken, may have left it."""
    if last.to_version is not None and last.to_version not in state.releases:
        return False  # deleted without Presage
    if not last.done:
        return state.champion in (last.from_version, last.to_version)
    return any(
        entry.to_version == state.champion and last.created_ms - entry.created_ms < _MAX_DELAY_MS
        for entry in state.moves[:-1]
    )


def _record_outside_change(client: Any, state: State, reason: str) -> None:
    """Write down that the alias is where it is; of two that do so at once one is valid."""
    last, now = state.last, state.champion
    move = Move(
        from_version=last.to_version if last else None,
        from_release=last.to_release if last else "",
        to_version=now,
        to_release=state.releases.get(now, "") if now is not None else "",
        verdict=OUTSIDE,
        reason=reason,
        by=f"unknown; noted by {current_user()}",
        withdraws=False,
    )
    append_entry(client, move, state.last_number)


def _delete(client: Any, entry: Entry) -> None:
    """Delete the version that an entry names, and its run; another process may do so, too."""
    version = str(entry.deletes)
    with _ignore_missing():
        run_id = client.get_model_version(MODEL, version).run_id
        with _ignore_missing():
            client.delete_run(run_id)
        client.delete_model_version(MODEL, version)
    mark_done(client, entry)


@contextmanager
def _ignore_missing() -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise


def _update_aliases(client: Any, entry: Entry, state: State) -> None:
    """Aliases and tags as an entry says; doing it twice changes nothing more."""
    old, new = entry.from_version, entry.to_version
    if new in state.releases and entry.verdict != OUTSIDE:
        client.set_registered_model_alias(MODEL, CHAMPION, new)
    if new in state.releases:
        client.delete_model_version_tag(MODEL, str(new), "withdrawn_at")
        client.set_model_version_tag(MODEL, str(new), "promoted_at", entry.at)
    if old in state.releases:
        client.set_registered_model_alias(MODEL, PREVIOUS, old)
        if entry.withdraws:
            client.set_model_version_tag(MODEL, str(old), "withdrawn_at", entry.at)
    elif PREVIOUS in state.aliases and entry.verdict != OUTSIDE:
        client.delete_registered_model_alias(MODEL, PREVIOUS)
    if new is not None and state.aliases.get(CHALLENGER) == new:
        client.delete_registered_model_alias(MODEL, CHALLENGER)
