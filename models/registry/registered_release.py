"""Registered releases: versions of one MLflow model, with tags and aliases, read by its client.

:mod:`presage.models.registry.champion` reads only the champion, without importing MLflow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from presage.models.registry.uri import RELEASE_ID

_ORIGIN = ("registered_by", "git_commit", "git_changed", "dvc_lock_sha256")  # tags


@dataclass(frozen=True, slots=True)
class RegisteredRelease:
    """Version in the registry.

    Attributes
    ----------
    registered_at : str
        Time of registration, in UTC.
    promoted_at : str
        Time of the last promotion to champion, in UTC; "" for none.
    withdrawn_at : str
        Time at which a person replaced it as champion; "" for none. Only a person can promote it
        again.
    decision : mapping or None
        Last decision of the gate, as written by ``pipelines/stages/promote.py``.
    registered_by, git_commit, git_changed, dvc_lock_sha256 : str
        See :class:`presage.models.registry.mlflow_run.Origin`; "" if not known.
    """

    version: int
    release_id: str
    data_digest: str
    aliases: tuple[str, ...]
    registered_at: str
    promoted_at: str
    withdrawn_at: str
    decision: Mapping[str, Any] | None
    run_id: str
    registered_by: str
    git_commit: str
    git_changed: str
    dvc_lock_sha256: str


def read_aliases(client: Any) -> dict[str, int] | None:
    """Return the version that each alias names; None if the registry has no model yet.

    Versions in the result of a search have no aliases; the model has all of them.
    """
    found = client.search_registered_models(f"name='{client.model}'")
    return {alias: int(version) for alias, version in found[0].aliases.items()} if found else None


def read_versions(client: Any) -> list[Any]:
    """Return MLflow's versions of the model, including those that Presage did not register."""
    return list(client.search_model_versions(f"name='{client.model}'"))


def read_releases(client: Any) -> list[RegisteredRelease]:
    """Return all registered releases, oldest first."""
    aliases = read_aliases(client)
    if aliases is None:
        return []
    ours = [version for version in read_versions(client) if RELEASE_ID in version.tags]
    return sorted((_parse_release(v, aliases) for v in ours), key=lambda release: release.version)


def _parse_release(version: Any, aliases: Mapping[str, int]) -> RegisteredRelease:
    number, tags = int(version.version), version.tags
    created = datetime.fromtimestamp(version.creation_timestamp / 1000, tz=UTC)
    return RegisteredRelease(
        version=number,
        release_id=tags[RELEASE_ID],
        data_digest=tags.get("data_digest", ""),
        aliases=tuple(sorted(alias for alias, named in aliases.items() if named == number)),
        registered_at=created.isoformat(timespec="seconds"),
        promoted_at=tags.get("promoted_at", ""),
        withdrawn_at=tags.get("withdrawn_at", ""),
        decision=json.loads(tags["decision"]) if "decision" in tags else None,
        run_id=version.run_id,
        **{name: tags.get(name, "") for name in _ORIGIN},
    )


def find_by_alias(releases: Sequence[RegisteredRelease], alias: str) -> RegisteredRelease | None:
    """Return the release that an alias names."""
    return next((release for release in releases if alias in release.aliases), None)


def summarize_releases(releases: Sequence[RegisteredRelease]) -> str:
    """Return a line that lists releases, the newest first."""
    names = [
        f"{r.version} ({', '.join((r.release_id, *r.aliases))})"
        for r in sorted(releases, key=lambda r: -r.version)[:5]
    ]
    more = [f"{len(releases) - len(names)} older"] if len(releases) > len(names) else []
    return f"version {', '.join(names + more)}" if names else "none yet; `dvc repro` registers one"
