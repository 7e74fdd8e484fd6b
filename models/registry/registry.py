"""The registry: releases as versions of one MLflow model, and the aliases that say which is served.

MLflow keeps no history of an alias, registers equal bytes twice and lets the last writer win.
So: a release is registered once, by its id; every change of the champion is an entry of a journal
(models/registry/promotion_journal.py), which the aliases follow (models/registry/promotion.py); and
a release that a person took off is marked, because the gate must not put it back.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from presage.errors import ForeignReleaseError, RegistryError, ReleaseError, one_line
from presage.models.registry.mlflow_model_files import stored_files
from presage.models.registry.mlflow_run import (
    FOLDER,
    Origin,
    log_decision,
    log_release,
    note,
    search_tags,
)
from presage.models.registry.promotion import make_move, overtaken, settle
from presage.models.registry.promotion_journal import (
    DELETION,
    GATE,
    ROLLBACK,
    Entry,
    Move,
    make_model,
    read_journal,
    whoami,
)
from presage.models.registry.uri import (
    CHALLENGER,
    CHAMPION,
    ENVIRONMENT_VARIABLE,
    MODEL,
    PREVIOUS,
    REGISTER_AGAIN,
    SQLITE,
    check_database,
    database_path,
)
from presage.models.release.manifest import read_manifest
from presage.models.release.release import (
    FILES,
    MANIFEST,
    SIGNATURE,
    Release,
    load_release,
)
from presage.system.atomic_folder import partial_folder, put_in_place, replaced_folder

ARTIFACTS = "artifacts"  # beside the database
MLMODEL = "MLmodel"  # the file by which MLflow knows a model
SHORTEST_PREFIX = 4
KEPT_ENTRIES = 10  # of the journal's moves: what the last ones refer to is not deleted

_ORIGIN = ("registered_by", "git_commit", "git_changed", "dvc_lock_sha256")  # tags
# What MLflow reads when it is imported; a user's own values win. Seven tries of two minutes each
# are MLflow's defaults: nobody waits that long to learn that a server is down.
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


@dataclass(frozen=True, slots=True)
class RegisteredRelease:
    """A version in the registry.

    Attributes
    ----------
    promoted_at : str
        When it last became champion, in UTC; "" if it never was.
    withdrawn_at : str
        When a person put another release in its place; "" if nobody did. Only a person puts it
        back.
    decision : mapping or None
        What the gate last said of it, as written by ``pipelines/stages/promote.py``.
    registered_by, git_commit, git_changed, dvc_lock_sha256 : str
        Of :class:`presage.models.registry.mlflow_run.Origin`; "" where it is not known.
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


class Registry:
    """Releases in MLflow, at ``sqlite:///PATH`` or ``http(s)://HOST``.

    A database's files lie in ``artifacts/`` beside it. Nothing is opened before the first call.
    Every method raises RegistryError when the registry cannot be reached; only :meth:`register`
    makes one that is not there.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._database = database_path(uri)
        self._client: Any = None

    def register(
        self,
        release: Release,
        metrics: Mapping[str, Any],
        origin: Callable[[], Origin] = Origin,
    ) -> int:
        """Version of a release: a new one, or the one it was registered as before.

        Of one from before, the stored files are fetched and checked, and put back where they are
        not what was registered.

        A new one has a run, with what a person may want to know of it; ``origin`` is asked for that
        alone. ``metrics`` may be nested; a figure is logged under its path, as
        ``memory.job.mlp.mape``.
        """
        with self._reach(f"register release {release.release_id}", create=True) as client:
            for known in self._versions(client):
                if known.release_id == release.release_id:
                    self._mend(client, known, release)
                    return known.version
            make_model(client, MODEL)
            whence = origin()
            run = self._log_run(client, release, metrics, whence)
            version = client.create_model_version(
                MODEL,
                source=f"{run.info.artifact_uri}/{FOLDER}",
                run_id=run.info.run_id,
                tags=search_tags(release, whence),
                description=note(release, whence),
            )
            # Of two processes that register it at once, the later one takes its own back.
            stands = min(
                known.version
                for known in self._versions(client)
                if known.release_id == release.release_id
            )
            if stands != int(version.version):
                client.delete_model_version(MODEL, version.version)
                client.delete_run(run.info.run_id)
            return stands

    def versions(self) -> list[RegisteredRelease]:
        """All releases, oldest first."""
        with self._reach("list releases") as client:
            return self._versions(client)

    def resolve(self, ref: str | int) -> RegisteredRelease:
        """Release that an alias, a version number or a release id names.

        The first four characters of an id will do, if no other begins with them.

        Raises
        ------
        RegistryError
            None or several are meant; says what there is.
        """
        releases, wanted = self.versions(), str(ref)
        named = [r for r in releases if wanted in (*r.aliases, str(r.version), r.release_id)]
        if not named and len(wanted) >= SHORTEST_PREFIX:
            named = [r for r in releases if r.release_id.startswith(wanted)]
        if len(named) == 1:
            return named[0]
        what = f"no release {wanted!r}" if not named else f"{wanted!r} is more than one release"
        raise RegistryError(f"{self.uri}: {what}; there is {_inventory(named or releases)}")

    def champion(self) -> RegisteredRelease | None:
        """The release that is served, if there is one."""
        return _holder(self.versions(), CHAMPION)

    def challenge(self, version: int) -> None:
        """Give a version the alias ``challenger``."""
        with self._reach(f"make version {version} the challenger") as client:
            client.set_registered_model_alias(MODEL, CHALLENGER, version)

    def settle(self) -> int:
        """Open the registry for writing: the number of the journal's last entry.

        What a process that died had begun is done, and what was moved without Presage is noted.
        """
        with self._reach("settle the journal") as client:
            return settle(client).tip

    def journal(self) -> list[Entry]:
        """Every change of the champion and every deletion, oldest first."""
        with self._reach("read the journal") as client:
            return read_journal(client)

    def promote(
        self,
        version: int,
        *,
        verdict: str = GATE,
        reason: str = "",
        by: str = "",
        follows: int | None = None,
    ) -> RegisteredRelease:
        """Make a version the champion, and the champion until now ``previous``.

        By hand, the release that goes is withdrawn: the gate will not bring it back.

        Parameters
        ----------
        verdict : str
            By what right: one of :data:`presage.models.registry.promotion_journal.VERDICTS`.
        by : str
            Who; else this user on this machine.
        follows : int
            The journal's last entry when this was decided; else the last one now. A deletion that
            came since is no objection.

        Raises
        ------
        RegistryError
            The champion changed meanwhile, or the version was deleted; says what, and by whom.
        """
        with self._reach(f"promote version {version}") as client:
            state = settle(client)
            if follows is not None and any(move.number > follows for move in state.moves):
                raise overtaken(state.moves, follows)
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
                by=by or whoami(),
                withdraws=verdict != GATE,
            )
            make_move(client, move, state.tip)
        return self.resolve(version)

    def rollback(self, *, reason: str = "", by: str = "") -> RegisteredRelease:
        """Make ``previous`` the champion again, and withdraw the champion until now.

        Raises
        ------
        RegistryError
            There is no previous release; or the champion changed meanwhile.
        """
        follows = self.settle()
        releases = self.versions()
        bad, good = _holder(releases, CHAMPION), _holder(releases, PREVIOUS)
        if good is None or good == bad:
            raise RegistryError(
                f"{self.uri}: no previous release to go back to; there is {_inventory(releases)}. "
                "Choose one with `presage models promote`"
            )
        return self.promote(good.version, verdict=ROLLBACK, reason=reason, by=by, follows=follows)

    def delete(self, version: int) -> RegisteredRelease:
        """Delete a version and its run, unless something refers to it; says what it was.

        Raises
        ------
        RegistryError
            An alias or one of the journal's last entries refers to it; names which. Or the
            champion changed meanwhile: nothing was deleted then.
        """
        with self._reach(f"delete version {version}") as client:
            state = settle(client)
            release = self.resolve(version)
            holders = [f"alias {alias}" for alias in release.aliases]
            holders += [
                f"journal entry {entry.number}"
                for entry in state.moves[-KEPT_ENTRIES:]
                if version in (entry.from_version, entry.to_version)
            ]
            if holders:
                raise RegistryError(
                    f"{self.uri}: version {version} ({release.release_id}) is kept: "
                    f"{', '.join(holders)} refer{'s' if len(holders) == 1 else ''} to it. What "
                    f"an alias or the last {KEPT_ENTRIES} entries name may be wanted back"
                )
            deletion = Move(
                from_version=None,
                from_release="",
                to_version=None,
                to_release="",
                verdict=DELETION,
                reason=f"version {version} ({release.release_id})",
                by=whoami(),
                withdraws=False,
                deletes=version,
            )
            make_move(client, deletion, state.tip)
        return release

    def download(self, version: int, to: Path) -> Release:
        """Lay a version's release folder down at ``to``; a reader sees all of it or nothing.

        An older release folder at ``to`` is replaced, anything else there is not.

        Raises
        ------
        ReleaseError
            A file is not what was registered; then ``to`` is as it was.
        ForeignReleaseError
            The release is for another feature schema, or of another format; then, too.
        """
        release, to = self.resolve(version), to.absolute()
        _check_target(to)
        partial = partial_folder(to)
        try:
            self._fetch(release, partial)
            for path in {*partial.iterdir()} - {partial / name for name in (*FILES, SIGNATURE)}:
                path.unlink()  # MLflow's own, by which its commands load the release
            loaded = self._load(partial, release)
            put_in_place(partial, to)
        except OSError as error:
            raise RegistryError(f"{to}: cannot be written ({error.strerror})") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return replace(loaded, folder=to)

    def attach_signature(self, version: int, signature: Path) -> None:
        """Put a signature beside a version's manifest, in place of any that is there."""
        release = self.resolve(version)
        with self._reach(f"sign version {version}") as client:
            if self._database is None:
                client.log_artifact(release.run_id, str(signature), FOLDER)
                return
            beside = self._beside(release, FOLDER)
            partial = beside / f".{SIGNATURE}.{secrets.token_hex(4)}"
            shutil.copyfile(signature, partial)
            partial.replace(beside / SIGNATURE)

    def manifest(self, release: RegisteredRelease) -> dict[str, Any]:
        """``release.json`` of a version, also of one that this version of Presage cannot serve."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / MANIFEST
            self._fetch(release, path, f"{FOLDER}/{MANIFEST}")
            try:
                content: dict[str, Any] = json.loads(path.read_text())
            except (OSError, ValueError) as error:
                raise ReleaseError(
                    f"version {release.version}: no {MANIFEST} can be read from it "
                    f"({_cause(error)}); {REGISTER_AGAIN}"
                ) from error
        return content

    def log_decision(
        self,
        version: int,
        decision: Mapping[str, Any],
        metrics: Mapping[str, Any],
        table: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Keep what the gate said: in the release's run, and as a tag on the version.

        The tag holds all of the decision, so that one write makes it true; ``table``, which has
        every row that was judged, is an artifact of the run, once for MLflow's page.
        """
        run_id = self.resolve(version).run_id
        with self._reach(f"log the gate's decision on version {version}") as client:
            log_decision(client, run_id, decision, metrics, table)
            client.set_model_version_tag(MODEL, version, "outcome", decision["outcome"])
            compact = json.dumps(decision, sort_keys=True, separators=(",", ":"))
            client.set_model_version_tag(MODEL, version, "decision", compact)

    def _versions(self, client: Any) -> list[RegisteredRelease]:
        found = client.search_registered_models(f"name='{MODEL}'")
        if not found:
            return []
        # Versions that a search returns carry no aliases; the model knows them all.
        holders = {alias: int(version) for alias, version in found[0].aliases.items()}
        versions = client.search_model_versions(f"name='{MODEL}'")
        ours = [v for v in versions if "release_id" in v.tags]  # not a person's own experiment
        return sorted((_registered(v, holders) for v in ours), key=lambda r: r.version)

    def _log_run(
        self, client: Any, release: Release, metrics: Mapping[str, Any], origin: Origin
    ) -> Any:
        return log_release(client, self._experiment(client), release, metrics, origin)

    def _experiment(self, client: Any) -> str:
        """Experiment whose artifacts lie beside the database, made when there is none.

        MLflow writes the absolute path down. A registry that was moved or copied gets a second
        experiment: it must not write into the folder that it came from.
        """
        from mlflow.exceptions import MlflowException

        location = None if self._database is None else str(self._database.parent / ARTIFACTS)
        for name in (MODEL, f"{MODEL}, moved to {location}"):
            found = client.get_experiment_by_name(name)
            if found is None:
                try:
                    return str(client.create_experiment(name, artifact_location=location))
                except MlflowException:
                    # Perhaps another process made it meanwhile.
                    found = client.get_experiment_by_name(name)
                    if found is None:
                        raise
            if location in (None, found.artifact_location):
                return str(found.experiment_id)
        raise RegistryError(f"{self.uri}: no experiment for {location}; give another registry")

    def _mend(self, client: Any, known: RegisteredRelease, release: Release) -> None:
        """Put a version's files back, MLflow's among them, unless they are there and whole."""
        with tempfile.TemporaryDirectory() as folder:
            stored = Path(folder) / FOLDER
            # RegistryError: none are there, or the registry is away, which putting them back tells.
            with suppress(ReleaseError, RegistryError):
                self._fetch(known, stored)
                self._load(stored, known)
                # Of a copied database they may come from where it was; a server looks beside it.
                is_here = self._database is None or self._beside(known, FOLDER).exists()
                if is_here and (stored / MLMODEL).is_file() and _has_signature(stored, release):
                    return
        with stored_files(release) as whole:
            if self._database is None:
                client.log_artifacts(known.run_id, str(whole), FOLDER)
                return
            beside = self._beside(known, FOLDER)
            with replaced_folder(beside) as partial:
                shutil.copytree(whole, partial, dirs_exist_ok=True)
                if (beside / SIGNATURE).is_file() and not (partial / SIGNATURE).exists():
                    shutil.copyfile(beside / SIGNATURE, partial / SIGNATURE)

    def _load(self, folder: Path, release: RegisteredRelease) -> Release:
        """Release that was fetched; errors name its version, not a folder that goes away."""
        where = f"version {release.version} ({release.release_id})"
        try:
            found = read_manifest(folder / MANIFEST).get("release_id")
            if found != release.release_id:
                raise ReleaseError(f"{folder}: its files are of release {one_line(found)}; ")
            return load_release(folder)
        except ForeignReleaseError as error:
            raise ForeignReleaseError(str(error).replace(str(folder), where)) from error
        except ReleaseError as error:
            # What to do with a folder, which comes last, is not what to do with a registry.
            damage = str(error).replace(str(folder), where).rpartition("; ")[0]
            raise ReleaseError(
                f"{self.uri}: {damage}; the registry's files are damaged: {REGISTER_AGAIN}, "
                f"DIR being a whole folder of release {release.release_id}"
            ) from error

    def _beside(self, release: RegisteredRelease, what: str) -> Path:
        """Where a version's files lie beside the database, wherever that was moved to since."""
        assert self._database is not None
        return self._database.parent / ARTIFACTS / release.run_id / ARTIFACTS / what

    def _fetch(self, release: RegisteredRelease, to: Path, what: str = FOLDER) -> None:
        """Copy a version's files, or one of them."""
        to.parent.mkdir(parents=True, exist_ok=True)
        if self._database is not None:
            beside = self._beside(release, what)
            if beside.exists():
                (shutil.copytree if beside.is_dir() else shutil.copyfile)(beside, to)
                return
        with self._reach(f"download version {release.version}"):
            from mlflow.artifacts import download_artifacts

            with tempfile.TemporaryDirectory(dir=to.parent, prefix=".") as folder:
                found = download_artifacts(
                    run_id=release.run_id,
                    artifact_path=what,
                    dst_path=folder,
                    tracking_uri=self.uri,
                )
                Path(found).rename(to)

    @contextmanager
    def _reach(self, doing: str, *, create: bool = False) -> Iterator[Any]:
        """MLflow's client; what it cannot do becomes one line that a person can act on."""
        if self._client is None and self._database is not None:
            check_database(self.uri, self._database, create=create)
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise RegistryError(
                f"cannot {doing}: MLflow is not installed; pip install 'presage[train]'"
            ) from error
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        uri = self.uri if self._database is None else f"{SQLITE}{self._database}"
        try:
            if self._client is None:
                self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            yield self._client
        except (MlflowException, OSError) as error:
            raise RegistryError(
                f"{self.uri}: cannot {doing} ({_cause(error)}); check that the registry is up and "
                f"may be written, or name another with --registry or {ENVIRONMENT_VARIABLE}"
            ) from error


def _has_signature(stored: Path, release: Release) -> bool:
    """Whether stored files have the signature of a release, if it has one, and its manifest."""
    if not (release.folder / SIGNATURE).is_file():
        return True
    return all(
        (stored / name).is_file()
        and (stored / name).read_bytes() == (release.folder / name).read_bytes()
        for name in (MANIFEST, SIGNATURE)
    )


def _check_target(to: Path) -> None:
    """Only a release folder, or an empty one, may be replaced."""
    if not to.exists() or (to / MANIFEST).is_file():
        return
    if not to.is_dir() or any(to.iterdir()):
        raise RegistryError(f"{to}: exists and is not a release folder; give a new path")


def _registered(version: Any, holders: Mapping[str, int]) -> RegisteredRelease:
    number, tags = int(version.version), version.tags
    created = datetime.fromtimestamp(version.creation_timestamp / 1000, tz=UTC)
    return RegisteredRelease(
        version=number,
        release_id=tags["release_id"],
        data_digest=tags.get("data_digest", ""),
        aliases=tuple(sorted(alias for alias, held in holders.items() if held == number)),
        registered_at=created.isoformat(timespec="seconds"),
        promoted_at=tags.get("promoted_at", ""),
        withdrawn_at=tags.get("withdrawn_at", ""),
        decision=json.loads(tags["decision"]) if "decision" in tags else None,
        run_id=version.run_id,
        **{name: tags.get(name, "") for name in _ORIGIN},
    )


def _holder(releases: Sequence[RegisteredRelease], alias: str) -> RegisteredRelease | None:
    return next((release for release in releases if alias in release.aliases), None)


def _inventory(releases: Sequence[RegisteredRelease]) -> str:
    """Releases in one line, the newest first."""
    names = [
        f"{r.version} ({', '.join((r.release_id, *r.aliases))})"
        for r in sorted(releases, key=lambda r: -r.version)[:5]
    ]
    more = [f"{len(releases) - len(names)} older"] if len(releases) > len(names) else []
    return f"version {', '.join(names + more)}" if names else "none yet; `dvc repro` registers one"


def _cause(error: Exception) -> str:
    """What went wrong, out of an HTTP client's long story about it."""
    reason = re.search(r"\[Errno -?\d+\] [^\"')]+", str(error))
    return reason.group() if reason else (str(error).splitlines() or [type(error).__name__])[0]
