"""Registry of releases: versions of one MLflow model, with aliases for the champion and others.

MLflow keeps no history of an alias, registers equal bytes twice, and lets the last writer win.
Therefore a release is registered once, by its id. Every change of the champion is an entry of a
journal (:mod:`presage.models.registry.promotion_journal`), which the aliases follow
(:mod:`presage.models.registry.promotion`). A release that a person withdrew is marked, because the
gate must not promote it again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from presage.errors import RegistryError
from presage.models.registry.mlflow_connection import MlflowConnection
from presage.models.registry.mlflow_reader import reading
from presage.models.registry.mlflow_run import (
    Origin,
    describe_release,
    log_decision,
    log_release,
    search_tags,
)
from presage.models.registry.promotion import commit_move, conflict_error, reconcile
from presage.models.registry.promotion_journal import (
    DELETION,
    GATE,
    ROLLBACK,
    Entry,
    Move,
    current_user,
    ensure_model,
    read_journal,
)
from presage.models.registry.registered_release import (
    RegisteredRelease,
    find_by_alias,
    read_releases,
    summarize_releases,
)
from presage.models.registry.release_kind import PREDICTORS, RegistrableRelease, ReleaseKind
from presage.models.registry.stored_releases import StoredReleases
from presage.models.registry.uri import (
    CHALLENGER,
    CHAMPION,
    FOLDER,
    PREVIOUS,
)
from presage.models.release.release import MANIFEST, SIGNATURE, Release
from presage.system.files.atomic_folder import partial_folder, put_in_place

SHORTEST_PREFIX = 4
KEPT_ENTRIES = 10  # versions in the last moves of the journal are not deleted


class Registry:
    """Registry in MLflow, at ``sqlite:///PATH`` or ``http(s)://HOST``.

    The files of a database are in ``artifacts/`` next to it. Nothing is opened before the first
    call. Every method raises RegistryError if the registry cannot be reached. Only :meth:`register`
    creates a registry that does not exist.

    Parameters
    ----------
    uri : str
    kind : ReleaseKind
        Kind of the releases; each kind has a registered model, aliases and a journal of its own.
    """

    def __init__(self, uri: str, kind: ReleaseKind = PREDICTORS) -> None:
        self.uri, self._kind = uri, kind
        self._connection = MlflowConnection(uri, kind.model)
        self._files = StoredReleases(self._connection, kind)

    def register(
        self,
        release: RegistrableRelease,
        metrics: Mapping[str, Any],
        origin: Callable[[], Origin] = Origin,
    ) -> int:
        """Register a release; return its version, or the existing one of an equal release.

        The stored files of an existing version are verified, and stored again if they changed.

        Parameters
        ----------
        release : Release
        metrics : mapping
            Metrics to log in the run of a new version; nested ones by path, as
            ``memory.job.mlp.mape``.
        origin : callable
            Returns the provenance; called only for a new version.
        """
        with self._connection.connect(
            f"register release {release.release_id}", create=True
        ) as client:
            for known in read_releases(client):
                if known.release_id == release.release_id:
                    self._files.restore(client, known, release)
                    return known.version
            ensure_model(client, client.model)
            provenance = origin()
            experiment = self._files.experiment(client)
            run = log_release(client, experiment, release, metrics, provenance, self._kind.stored)
            version = client.create_model_version(
                client.model,
                source=f"{run.info.artifact_uri}/{FOLDER}",
                run_id=run.info.run_id,
                tags=search_tags(release, provenance),
                description=describe_release(release, provenance),
            )
            # If two processes register it concurrently, the later one deletes its version.
            first = min(
                known.version
                for known in read_releases(client)
                if known.release_id == release.release_id
            )
            if first != int(version.version):
                client.delete_model_version(client.model, version.version)
                client.delete_run(run.info.run_id)
            return first

    def versions(self) -> list[RegisteredRelease]:
        """Return all releases, oldest first."""
        with reading(self._connection, "list releases") as reader:
            return read_releases(reader)

    def resolve(self, ref: str | int) -> RegisteredRelease:
        """Return the release that an alias, a version number or a release id names.

        The first four characters of an id suffice if no other id begins with them.

        Raises
        ------
        RegistryError
            No release or several match; the message lists the registered ones.
        """
        releases, name = self.versions(), str(ref)
        matches = [r for r in releases if name in (*r.aliases, str(r.version), r.release_id)]
        if not matches and len(name) >= SHORTEST_PREFIX:
            matches = [r for r in releases if r.release_id.startswith(name)]
        if len(matches) == 1:
            return matches[0]
        problem = f"no release {name!r}" if not matches else f"{name!r} matches several releases"
        known = summarize_releases(matches or releases)
        raise RegistryError(f"{self.uri}: {problem}; registered: {known}")

    def champion(self) -> RegisteredRelease | None:
        """Return the champion, which is the release to serve; None if there is none."""
        return find_by_alias(self.versions(), CHAMPION)

    def set_challenger(self, version: int) -> None:
        """Give a version the alias ``challenger``."""
        with self._connection.connect(f"make version {version} the challenger") as client:
            client.set_registered_model_alias(client.model, CHALLENGER, version)

    def reconcile(self) -> int:
        """Make aliases and journal agree; return the number of the journal's last entry.

        Entries of processes that died are applied, and changes made without Presage are recorded.
        """
        with self._connection.connect("reconcile the journal") as client:
            return reconcile(client).last_number

    def journal(self) -> list[Entry]:
        """Return every change of the champion and every deletion, oldest first."""
        with reading(self._connection, "read the journal") as reader:
            return read_journal(reader)

    def promote(
        self,
        version: int,
        *,
        verdict: str = GATE,
        reason: str = "",
        by: str = "",
        follows: int | None = None,
    ) -> RegisteredRelease:
        """Make a version the champion, and the old champion ``previous``.

        Unless the gate promotes, the old champion is withdrawn: the gate does not promote it again.

        Parameters
        ----------
        version : int
        verdict : str
            Justification, from :data:`presage.models.registry.promotion_journal.VERDICTS`.
        reason : str
            Reason to record.
        by : str
            Author; by default this user on this machine.
        follows : int
            Last journal entry at the time of the decision; by default the current last one. Later
            deletions are ignored.

        Raises
        ------
        RegistryError
            The champion changed meanwhile, or the version was deleted; the message names the
            change and its author.
        ConfigError
            The environment names a webhook that is not valid; nothing was changed.
        """
        from presage.models.gate.release_events import notify_of_move
        from presage.system.notifications.webhook import configured_webhook

        webhook = configured_webhook()
        with self._connection.connect(f"promote version {version}") as client:
            state = reconcile(client)
            if follows is not None and any(move.number > follows for move in state.moves):
                raise conflict_error(state.moves, follows)
            new = self.resolve(version)
            if state.champion == new.version:
                return new
            move = Move(
                from_version=state.champion,
                from_release=state.releases.get(state.champion or 0, ""),
                to_version=new.version,
                to_release=new.release_id,
                verdict=verdict,
                reason=reason,
                by=by or current_user(),
                withdraws=verdict != GATE,
            )
            commit_move(client, move, state.last_number)
        notify_of_move(webhook, move, self._kind.model)
        return self.resolve(version)

    def rollback(self, *, reason: str = "", by: str = "") -> RegisteredRelease:
        """Make ``previous`` the champion again, and withdraw the champion.

        Raises
        ------
        RegistryError
            There is no previous release, or the champion changed meanwhile.
        """
        follows = self.reconcile()
        releases = self.versions()
        champion = find_by_alias(releases, CHAMPION)
        previous = find_by_alias(releases, PREVIOUS)
        if previous is None or previous == champion:
            raise RegistryError(
                f"{self.uri}: no previous release to roll back to; registered: "
                f"{summarize_releases(releases)}. Choose one with `presage models promote`"
            )
        return self.promote(
            previous.version, verdict=ROLLBACK, reason=reason, by=by, follows=follows
        )

    def delete(self, version: int) -> RegisteredRelease:
        """Delete a version and its run, unless something refers to it; return the version.

        Raises
        ------
        RegistryError
            An alias or one of the journal's last entries refers to it, or the champion changed
            meanwhile. Nothing is deleted.
        """
        with self._connection.connect(f"delete version {version}") as client:
            state = reconcile(client)
            release = self.resolve(version)
            references = [f"alias {alias}" for alias in release.aliases]
            references += [
                f"journal entry {entry.number}"
                for entry in state.moves[-KEPT_ENTRIES:]
                if version in (entry.from_version, entry.to_version)
            ]
            if references:
                raise RegistryError(
                    f"{self.uri}: version {version} ({release.release_id}) is not deleted, because "
                    f"{', '.join(references)} refer{'s' if len(references) == 1 else ''} to it; "
                    f"versions with an alias or in the last {KEPT_ENTRIES} entries are kept"
                )
            deletion = Move(
                from_version=None,
                from_release="",
                to_version=None,
                to_release="",
                verdict=DELETION,
                reason=f"version {version} ({release.release_id})",
                by=current_user(),
                withdraws=False,
                deletes=version,
            )
            commit_move(client, deletion, state.last_number)
        return release

    def download(self, version: int, target: Path) -> Release:
        """Download a version's release folder to ``target``, atomically.

        An older release folder at ``target`` is replaced. Anything else there is an error.

        Raises
        ------
        ReleaseError
            A file differs from what was registered; ``target`` is unchanged.
        ForeignReleaseError
            The release has another feature schema or format; ``target`` is unchanged.
        """
        release, target = self.resolve(version), target.absolute()
        _check_target(target)
        partial = partial_folder(target)
        try:
            self._files.fetch(release, partial)
            names = (*self._kind.files(partial), SIGNATURE)
            for path in {*partial.iterdir()} - {partial / name for name in names}:
                path.unlink()  # MLflow's model files
            loaded = self._files.load(partial, release)
            put_in_place(partial, target)
        except OSError as error:
            raise RegistryError(f"{target}: cannot be written ({error.strerror})") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return replace(loaded, folder=target)

    def attach_signature(self, version: int, signature: Path) -> None:
        """Store a signature with a version's manifest, replacing an older one."""
        self._files.attach_signature(self.resolve(version), signature)

    def manifest(self, release: RegisteredRelease) -> dict[str, Any]:
        """Return ``release.json`` of a version, also if this version of Presage cannot serve it."""
        return self._files.manifest(release)

    def log_decision(
        self,
        version: int,
        decision: Mapping[str, Any],
        metrics: Mapping[str, Any],
        table: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Log a decision of the gate in the release's run, and as a tag of the version.

        The tag has the complete decision, so that one write is enough. ``table``, with every row of
        the decision table, becomes an artifact of the run.
        """
        run_id = self.resolve(version).run_id
        with self._connection.connect(f"log the gate's decision on version {version}") as client:
            log_decision(client, run_id, decision, metrics, table)
            client.set_model_version_tag(client.model, version, "outcome", decision["outcome"])
            compact = json.dumps(decision, sort_keys=True, separators=(",", ":"))
            client.set_model_version_tag(client.model, version, "decision", compact)


def _check_target(target: Path) -> None:
    """Raise RegistryError unless ``target`` is free, an empty folder or a release folder."""
    if not target.exists() or (target / MANIFEST).is_file():
        return
    if not target.is_dir() or any(target.iterdir()):
        raise RegistryError(f"{target}: exists and is not a release folder; give a new path")
