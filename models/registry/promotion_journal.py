"""Who was made champion, when, by whom and why: a journal in the registry that all machines share.

An entry is a version of a second registered model of MLflow, with its tags written by the call that
creates it; its number is the version, which MLflow hands out in one transaction. An entry names
the one it follows. It is *valid* if that is the last valid one before it. Of two promotions at
once both follow the same entry: the one with the smaller number is valid, and the other finds, on
reading again, that it is not. So a valid entry is a compare-and-set, which MLflow's aliases lack;
``docs/decisions/0023`` says why it is made so. A deletion is an entry, too: of a promotion and a
deletion at once one is valid.
"""

from __future__ import annotations

import getpass
import secrets
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

JOURNAL = "presage-journal"  # the registered model
NO_ENTRY = 0  # the number that the first entry follows

GATE, MANUAL, FORCED, ROLLBACK, OUTSIDE = "gate", "by hand", "forced", "rollback", "outside"
DELETION = "deletion"
VERDICTS = {
    GATE: "the gate said yes",
    MANUAL: "a person, after the gate had said yes",
    FORCED: "a person, regardless of the gate",
    ROLLBACK: "a person, back to the release before",
    OUTSIDE: "somebody moved the alias without Presage",
    DELETION: "a person deleted a version; the champion stays",
}

_SOURCE = "presage-journal:///entry"  # MLflow asks for one; an entry has no files
_DONE = "done"  # tag of an entry that has been carried out
_TRIES = 5
_RETRYABLE_ERRORS = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE")
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Move:
    """What is to become of the alias ``champion``, or which version is to go.

    Attributes
    ----------
    from_version, to_version : int or None
        Of the champion until now and of the new one; None for none.
    from_release, to_release : str
        Their release ids; "" for none.
    verdict : str
        By what right: one of ``VERDICTS``.
    reason : str
        The gate's, or the person's.
    by : str
        Who.
    withdraws : bool
        Whether a person took the champion until now off, so that the gate must not bring it back.
    deletes : int or None
        Version that goes, with its run; then the champion stays, and names no versions here.
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
    """A move that was written down.

    Attributes
    ----------
    number : int
        Its place.
    follows : int
        The entry that was the last one to who wrote it.
    at : str
        When, in UTC, by the clock of who wrote it.
    created_ms : int
        When, by the registry's.
    token : str
        Tells who wrote it that it is theirs, also where MLflow's client sent it twice.
    done : bool
        Whether the aliases were seen to be as it says, or the version to be gone.
    """

    number: int
    follows: int
    at: str
    created_ms: int
    token: str
    done: bool


def valid_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Those that followed the last valid one before them, oldest first."""
    valid: list[Entry] = []
    for entry in sorted(entries, key=lambda entry: entry.number):
        if entry.follows == (valid[-1].number if valid else NO_ENTRY):
            valid.append(entry)
    return valid


def select_moves(entries: Iterable[Entry]) -> Sequence[Entry]:
    """Those that say which release is champion; deletions left out."""
    return [entry for entry in entries if entry.deletes is None]


def read_journal(client: Any) -> list[Entry]:
    """Valid entries, oldest first."""
    found, token = [], None
    while True:
        page = client.search_model_versions(
            f"name='{JOURNAL}'", max_results=_PAGE, page_token=token
        )
        found += [_parse_entry(version) for version in page if "follows" in version.tags]
        token = page.token
        if not token:
            return valid_entries(found)


def append_entry(client: Any, move: Move, follows: int) -> str:
    """Write an entry down, and say its token; only reading again tells whether it is valid."""
    from mlflow.exceptions import MlflowException

    ensure_model(client, JOURNAL)
    token = secrets.token_hex(8)
    tags = {
        "follows": str(follows),
        "at": utc_now(),
        "token": token,
        **{one.name: _format_tag(getattr(move, one.name)) for one in fields(Move)},
    }
    for left in reversed(range(_TRIES)):
        try:
            client.create_model_version(JOURNAL, _SOURCE, tags=tags)
            break
        except MlflowException as error:
            # Others took the number three times over, or locked the database for long. Should the
            # entry be there all the same, a second one of the same token is not valid and no harm.
            if error.error_code not in _RETRYABLE_ERRORS or not left:
                raise
    return token


def mark_done(client: Any, entry: Entry) -> None:
    """Note that the registry is as the entry says."""
    client.set_model_version_tag(JOURNAL, str(entry.number), _DONE, "true")


def ensure_model(client: Any, name: str) -> None:
    """Make a registered model, unless there is one."""
    from mlflow.exceptions import MlflowException

    if client.search_registered_models(f"name='{name}'"):
        return
    try:
        client.create_registered_model(name)
    except MlflowException as error:  # another process was quicker
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def current_user() -> str:
    """User and machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def utc_now() -> str:
    """The time, in UTC."""
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
