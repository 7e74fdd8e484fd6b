"""Promotion journal: every change of the champion, with time, author and reason.

The journal is in the registry, so all machines share it. An entry is a version of a second
registered model of MLflow, created with its tags in one call. Its number is the version, which
MLflow assigns in a transaction. An entry names the entry that it follows, and is *valid* if that is
the last valid entry before it. Two concurrent promotions follow the same entry: the one with the
smaller number is valid, and the other finds on reading again that it is not. So appending a valid
entry is a compare-and-set, which MLflow's aliases lack (``docs/decisions/0023``). Deletions are
entries too: of a concurrent promotion and deletion, one is valid.
"""

from __future__ import annotations

import getpass
import secrets
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

NO_ENTRY = 0  # the predecessor of the first entry

GATE, MANUAL, FORCED, ROLLBACK, OUTSIDE = "gate", "by hand", "forced", "rollback", "outside"
DELETION = "deletion"
VERDICTS = {
    GATE: "the gate accepted the release",
    MANUAL: "a person promoted a release that the gate accepts",
    FORCED: "a person promoted a release regardless of the gate",
    ROLLBACK: "a person restored the previous release",
    OUTSIDE: "the alias was moved without Presage",
    DELETION: "a person deleted a version; the champion stays",
}

_SOURCE = "presage-journal:///entry"  # required by MLflow; an entry has no files
_DONE = "done"  # tag of an applied entry
_TRIES = 5
_RETRYABLE_ERRORS = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE")
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Move:
    """Change of the alias ``champion``, or deletion of a version.

    Attributes
    ----------
    from_version, to_version : int or None
        Versions of the old and the new champion; None for none.
    from_release, to_release : str
        Their release ids; "" for none.
    verdict : str
        Justification, one of ``VERDICTS``.
    reason : str
        Reason given by the gate or a person.
    by : str
        User and machine.
    withdraws : bool
        Whether a person withdrew the old champion, so that the gate must not promote it again.
    deletes : int or None
        Version to delete, with its run; then the other versions are None.
    """

    from_version: int | None
    from_release: str
    to_version: int | None
    to_release: str
    verdict: str
    reason: str
    by: str
    withdraws: bool
    deletes: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Entry(Move):
    """Journal entry of a move.

    Attributes
    ----------
    number : int
        Position in the journal.
    follows : int
        Number of the preceding entry.
    at : str
        Time in UTC, by the clock of the author's machine.
    created_ms : int
        Time by the clock of the registry, in milliseconds.
    token : str
        Random token by which the author recognizes the entry, even if MLflow's client sent it
        twice.
    done : bool
        Whether the move was applied.
    """

    number: int
    follows: int
    at: str
    created_ms: int
    token: str
    done: bool


def valid_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries that follow the last valid entry before them, oldest first."""
    valid: list[Entry] = []
    for entry in sorted(entries, key=lambda entry: entry.number):
        if entry.follows == (valid[-1].number if valid else NO_ENTRY):
            valid.append(entry)
    return valid


def select_moves(entries: Iterable[Entry]) -> Sequence[Entry]:
    """Return the entries that are not deletions."""
    return [entry for entry in entries if entry.deletes is None]


def read_journal(client: Any) -> list[Entry]:
    """Return the valid entries, oldest first."""
    found, token = [], None
    while True:
        page = client.search_model_versions(
            f"name='{client.journal}'", max_results=_PAGE, page_token=token
        )
        found += [_parse_entry(version) for version in page if "follows" in version.tags]
        token = page.token
        if not token:
            return valid_entries(found)


def append_entry(client: Any, move: Move, follows: int) -> str:
    """Append an entry; return its token. Read the journal to learn whether it is valid."""
    from mlflow.exceptions import MlflowException

    ensure_model(client, client.journal)
    token = secrets.token_hex(8)
    tags = {
        "follows": str(follows),
        "at": utc_now(),
        "token": token,
        **{f.name: _format_tag(getattr(move, f.name)) for f in fields(Move)},
    }
    for left in reversed(range(_TRIES)):
        try:
            client.create_model_version(client.journal, _SOURCE, tags=tags)
            break
        except MlflowException as error:
            # Other processes took the number three times, or locked the database for long. If the
            # entry was created nevertheless, a second one with the same token is not valid.
            if error.error_code not in _RETRYABLE_ERRORS or not left:
                raise
    return token


def mark_done(client: Any, entry: Entry) -> None:
    """Mark an entry as applied."""
    client.set_model_version_tag(client.journal, str(entry.number), _DONE, "true")


def ensure_model(client: Any, name: str) -> None:
    """Create a registered model unless it exists."""
    from mlflow.exceptions import MlflowException

    if client.search_registered_models(f"name='{name}'"):
        return
    try:
        client.create_registered_model(name)
    except MlflowException as error:  # another process was faster
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def current_user() -> str:
    """Return user and machine, as ``user@host``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # in a container, a user may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def utc_now() -> str:
    """Return the current time in UTC."""
    return datetime.now(tz=UTC).isoformat(timespec="seconds")


def _parse_entry(version: Any) -> Entry:
    tags = version.tags
    return Entry(
        number=int(version.version),
        follows=int(tags["follows"]),
        at=tags["at"],
        created_ms=int(version.creation_timestamp),
        token=tags["token"],
        done=_DONE in tags,
        from_version=int(tags["from_version"]) if tags.get("from_version") else None,
        from_release=tags.get("from_release", ""),
        to_version=int(tags["to_version"]) if tags.get("to_version") else None,
        to_release=tags.get("to_release", ""),
        verdict=tags["verdict"],
        reason=tags.get("reason", ""),
        by=tags["by"],
        withdraws=tags.get("withdraws") == "True",
        deletes=int(tags["deletes"]) if tags.get("deletes") else None,
    )


def _format_tag(value: object) -> str:
    return "" if value is None else str(value)
