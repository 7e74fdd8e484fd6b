"""Lineage: the provenance of a release, and the releases that were trained on given measurements.

The training data of a release is in its manifest, and so in its id. Facts that differ between two
builds with equal bytes (commit, lock, author, time) are in the registry, where ``dvc repro``
recorded them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presage.errors import RegistryError, ReleaseError
from presage.models.registry.registry import SHORTEST_PREFIX
from presage.models.registry.uri import CHAMPION, PREVIOUS
from presage.models.release.manifest import job_digest, parse_job_digests
from presage.models.release.pretrained import pretrained_release
from presage.models.release.release import load_release
from presage.models.release.training_data import (
    CampaignFolder,
    CampaignRows,
    TrainingData,
    read_training_data,
)
from presage.models.training.splits import HELD_OUT_FOLD, job_folds

if TYPE_CHECKING:
    from presage.models.registry.registered_release import RegisteredRelease
    from presage.models.registry.registry import Registry

# Folders of a checkout with releases that may be unregistered.
LOCAL_FOLDERS = (Path("data/release"), Path("data/pretrained/release"))
_REMOVE_FROM = "from ingest and featurize in dvc.yaml, or the rows from its tables"
# Campaigns that a stage rebuilds: rows removed only from their tables would come back.
_REBUILT_CAMPAIGNS = {
    "data/profiles/local": "remove the rows from data/profiles/local, run `dvc commit -f profile`",
    "data/outcomes/tables": "list the outcomes in params.yaml under outcomes.withdrawn",
}
UNCHANGED, CHANGED, ABSENT = "unchanged", "changed", "missing"


@dataclass(frozen=True)
class ReleaseRecord:
    """Release with its manifest and location.

    Attributes
    ----------
    manifest : mapping
        Content of ``release.json``.
    folder : Path or None
        Folder of its files; None if it is only in the registry.
    registered : RegisteredRelease or None
        Its version in the registry; None if it is unregistered.
    """

    manifest: Mapping[str, Any]
    folder: Path | None
    registered: RegisteredRelease | None

    @property
    def release_id(self) -> str:
        """Release id."""
        return str(self.manifest["release_id"])

    @property
    def name(self) -> str:
        """Name for people: the version, else the folder."""
        if self.registered is not None:
            return f"version {self.registered.version}"
        return str(self.folder)

    @property
    def aliases(self) -> tuple[str, ...]:
        """Aliases of its version."""
        return () if self.registered is None else self.registered.aliases

    @property
    def training_data(self) -> TrainingData | None:
        """Training data in the manifest; None for releases of older versions."""
        return read_training_data(self.manifest, f"release {self.release_id}")


def find_release(ref: str, registry: Registry) -> ReleaseRecord:
    """Return the release that a version, alias, id or folder names.

    An id that is not in the registry may be that of a release of this checkout, or of the
    pretrained release.

    Raises
    ------
    RegistryError
        No release matches.
    ReleaseError
        The folder is not a release, or is corrupt.
    """
    try:
        registered = registry.resolve(ref)
    except RegistryError:
        if ref and Path(ref).is_dir():
            versions: list[RegisteredRelease] = []
            with suppress(RegistryError):  # a folder does not need a registry
                versions = registry.versions()
            return _load_record(Path(ref), versions)
        for found in _local_releases((), (*LOCAL_FOLDERS, pretrained_release())):
            if len(ref) >= SHORTEST_PREFIX and found.release_id.startswith(ref):
                return found
        raise
    return ReleaseRecord(registry.manifest(registered), None, registered)


def list_releases(registry: Registry) -> list[ReleaseRecord]:
    """Return the registered releases, newest first, then unregistered ones of this checkout."""
    versions = registry.versions()[::-1]
    found = [ReleaseRecord(_read_manifest(registry, v), None, v) for v in versions]
    local = _local_releases(versions, LOCAL_FOLDERS)
    return found + [release for release in local if release.registered is None]


def _read_manifest(registry: Registry, registered: RegisteredRelease) -> dict[str, Any]:
    """Return the manifest of a release; only its id if the files are missing."""
    try:
        return registry.manifest(registered)
    except (RegistryError, ReleaseError):
        return {"release_id": registered.release_id}


def _local_releases(
    versions: Sequence[RegisteredRelease], folders: Sequence[Path]
) -> Iterator[ReleaseRecord]:
    for folder in folders:
        with suppress(ReleaseError):
            yield _load_record(folder, versions)


def _load_record(folder: Path, versions: Sequence[RegisteredRelease]) -> ReleaseRecord:
    release = load_release(folder)
    registered = next((v for v in versions if v.release_id == release.release_id), None)
    return ReleaseRecord(release.manifest, folder, registered)


# Provenance of a release -----------------------------------------------------------------------


def describe_lineage(release: ReleaseRecord) -> dict[str, Any]:
    """Return the provenance of a release; unknown facts are None."""
    data, registered = release.training_data, release.registered
    return {
        "release_id": release.release_id,
        "version": None if registered is None else registered.version,
        "aliases": list(release.aliases),
        "folder": None if release.folder is None else str(release.folder),
        "predictors": {
            name: file["sha256"] for name, file in release.manifest.get("predictors", {}).items()
        }
        | dict(release.manifest.get("files", {})),
        "data_digest": release.manifest["data_digest"],
        "run": None if registered is None else _describe_run(registered),
        "learnt_from": None if data is None else data.as_json(),
        "tables_here": {}
        if data is None
        else {f.folder: compare_local_tables(f) for f in data.folders},
    }


def _describe_run(registered: RegisteredRelease) -> dict[str, Any]:
    """Return the facts of a registration: run, time, author, commit and lock."""
    return {
        "run_id": registered.run_id,
        "registered_at": registered.registered_at,
        "registered_by": registered.registered_by or None,
        "git_commit": registered.git_commit or None,
        "git_changed": registered.git_changed.split(", ") if registered.git_changed else [],
        "dvc_lock_sha256": registered.dvc_lock_sha256 or None,
    }


def compare_local_tables(campaign: CampaignFolder) -> dict[str, str]:
    """Return, for each table in training, whether the one in this checkout is unchanged."""
    folder, found = Path(campaign.folder), {}
    for name, table in campaign.tables.items():
        try:
            digest = hashlib.sha256((folder / f"{name}.parquet").read_bytes()).hexdigest()
        except OSError:
            found[name] = ABSENT
        else:
            found[name] = UNCHANGED if digest == table.sha256 else CHANGED
    return found


# Releases that were trained on given measurements ----------------------------------------------


@dataclass(frozen=True)
class MeasurementFilter:
    """Filter for measurements; all conditions must hold.

    Attributes
    ----------
    campaign : str
        Name of a campaign, or of a folder of tables as in dvc.yaml or its last part; "" for any.
    machine : str
        Prefix of a machine's name in the tables; "" for any.
    job : str
        Id of a job; "" for any. A release records its jobs and its campaigns separately, so the
        job's rows may be from another campaign.
    """

    campaign: str = ""
    machine: str = ""
    job: str = ""

    def include(self, rows: CampaignRows, campaigns: frozenset[str]) -> bool:
        """Return whether rows match; ``campaigns`` are the campaigns that the filter names."""
        is_campaign = not self.campaign or rows.campaign in campaigns
        return is_campaign and rows.machine.startswith(self.machine)


@dataclass(frozen=True)
class TrainingUsage:
    """Use of some measurements in the training and evaluation of a release.

    Attributes
    ----------
    release : ReleaseRecord
    is_known : bool
        Whether the release records all its training data; if not, there may be more rows.
    rows : tuple of (CampaignRows, str)
        Groups of rows, each with the base release that contributed it, "" for none.
    folders : tuple of str
        Folders of the rows' tables.
    is_single_job : bool
        Whether the filter names a job, whose rows within the groups are not counted.
    """

    release: ReleaseRecord
    is_known: bool
    rows: tuple[tuple[CampaignRows, str], ...]
    folders: tuple[str, ...]
    is_single_job: bool

    @property
    def trained(self) -> int:
        """Number of training rows; of training jobs if the filter names a job."""
        rows = sum(rows.trained for rows, _ in self.rows)
        return min(rows, 1) if self.is_single_job else rows

    @property
    def held_out(self) -> int:
        """Number of held-out rows; 0 if the filter names a job."""
        own = (rows.held_out for rows, through in self.rows if not through)
        return 0 if self.is_single_job else sum(own)

    @property
    def through(self) -> str:
        """Base release that contributed all rows; "" if there are several or none."""
        names = {through for _, through in self.rows}
        return names.pop() if len(names) == 1 else ""

    def as_json(self) -> dict[str, Any]:
        """Return the facts for JSON output."""
        registered = self.release.registered
        return {
            "release_id": self.release.release_id,
            "version": None if registered is None else registered.version,
            "aliases": list(self.release.aliases),
            "folder": None if self.release.folder is None else str(self.release.folder),
            "is_known": self.is_known,
            "taught": self.trained,
            "held_out": self.held_out,
            "rows": [asdict(rows) | {"through": through} for rows, through in self.rows],
        }


def find_training_usage(
    query: MeasurementFilter, releases: Sequence[ReleaseRecord]
) -> list[TrainingUsage]:
    """Return the use of the measurements in each release, in order.

    Raises
    ------
    RegistryError
        No release has such a campaign, machine or job, so the name may be misspelt.
    """
    without_job = replace(query, job="")
    if (query.campaign or query.machine) and not any(
        _find_usage(without_job, release).rows for release in releases
    ):
        raise _unknown_names(query, releases)
    found = [_find_usage(query, release) for release in releases]
    if query.job and not _is_held_out(query.job) and not any(usage.rows for usage in found):
        incomplete = sum(not usage.is_known for usage in found)
        raise RegistryError(
            f"none of {len(releases)} releases was trained on job {query.job!r} of these "
            f"measurements ({incomplete} do not record all their jobs); find its id in the "
            "campaign's jobs.parquet"
        )
    return found


def _is_held_out(job_id: str) -> bool:
    return bool(job_folds([job_id])[0] == HELD_OUT_FOLD)


def _find_usage(query: MeasurementFilter, release: ReleaseRecord) -> TrainingUsage:
    data = release.training_data
    if data is None:
        return TrainingUsage(release, False, (), (), bool(query.job))
    folders = _all_folders(data)
    named = [folder for folder in folders if _is_named(query.campaign, folder)]
    campaigns = frozenset(name for folder in named for name in folder.campaigns)
    campaigns |= {query.campaign}
    rows = tuple(pair for pair in data.all_rows() if query.include(pair[0], campaigns))
    is_known = data.is_complete()
    if query.job:
        jobs = parse_job_digests(release.manifest.get("trained_on"))
        is_known = is_known and jobs is not None
        if job_digest(query.job) not in (jobs or ()):
            rows = ()
    used = {group.campaign for group, _ in rows}
    where = tuple(folder.folder for folder in folders if used.intersection(folder.campaigns))
    return TrainingUsage(release, is_known, rows, where, bool(query.job))


def _all_folders(data: TrainingData) -> tuple[CampaignFolder, ...]:
    """Return the folders of tables, including those of base releases."""
    base = data.base_release
    if base is None or base.training_data is None:
        return data.folders
    return data.folders + _all_folders(base.training_data)


def _is_named(campaign: str, folder: CampaignFolder) -> bool:
    """Return whether ``campaign`` names a folder, by its path or the last part of it."""
    path, name = Path(folder.folder), Path(campaign)
    if name.is_relative_to(Path.cwd()):
        name = name.relative_to(Path.cwd())
    return bool(campaign) and name in (path, Path(path.name))


def _unknown_names(query: MeasurementFilter, releases: Sequence[ReleaseRecord]) -> RegistryError:
    groups = [g for r in releases if r.training_data for g, _ in r.training_data.all_rows()]
    campaigns = ", ".join(sorted({group.campaign for group in groups})) or "none"
    unrecorded = sum(release.training_data is None for release in releases)
    what = " and ".join(
        f"{noun} {name!r}"
        for noun, name in (("campaign", query.campaign), ("machine", query.machine))
        if name
    )
    return RegistryError(
        f"none of {len(releases)} releases has {what} ({unrecorded} do not record their training "
        f"data); known campaigns: {campaigns}"
    )


def suggest_remedy(query: MeasurementFilter, found: Sequence[TrainingUsage]) -> str:
    """Return how an operator can remove these measurements from the champion."""
    champion = next((usage for usage in found if CHAMPION in usage.release.aliases), None)
    if query.job and _is_held_out(query.job):
        return f"job {query.job} is held out: no release is trained on it, all are evaluated on it"
    if champion is None:
        return "there is no champion to replace"
    name = f"champion {champion.release.release_id}"
    if champion.trained:
        what = "this job" if query.job else f"{champion.trained:,} of these rows"
        replacement, removal = _suggest_replacement(found), _suggest_removal(champion)
        return f"{name} was trained on {what}: {replacement}; {removal}"
    if not champion.is_known:
        return f"{name} does not record all its training data"
    if champion.held_out:
        evaluated = f"was evaluated on {champion.held_out:,} of these rows"
        return f"{name} was trained on none, but {evaluated}: {_suggest_removal(champion)}"
    return f"{name} was trained on none"


def _suggest_replacement(found: Sequence[TrainingUsage]) -> str:
    """Return the newest release that was not trained on the rows, and how to promote it."""
    clean = [
        usage.release
        for usage in found
        if usage.is_known and not usage.trained and usage.release.registered is not None
    ]
    if not clean:
        return "no registered release is known to be trained on none"
    # The reason why a person withdrew a release may still hold.
    usable = [release for release in clean if not _is_withdrawn(release)]
    if not usable:
        return f"{clean[0].name} was not, but it was withdrawn: see `presage models history`"
    if PREVIOUS in usable[0].aliases:
        return "the previous release was not, run `presage models rollback --reason TEXT`"
    command = f"presage models promote {usable[0].release_id} --force --reason TEXT"
    return f"{usable[0].name} is the newest that was not, run `{command}`"


def _is_withdrawn(release: ReleaseRecord) -> bool:
    return release.registered is not None and bool(release.registered.withdrawn_at)


def _suggest_removal(usage: TrainingUsage) -> str:
    """Return how to build the next release without the rows."""
    if usage.through:
        return (
            f"they came with the networks of release {usage.through}, which have to be rebuilt "
            "without them (docs/forecasts/pretrained.md)"
        )
    steps = [
        _REBUILT_CAMPAIGNS.get(folder, f"remove {folder} {_REMOVE_FROM}")
        for folder in usage.folders
    ]
    return f"{', '.join(steps) or f'remove the campaign {_REMOVE_FROM}'}, then run `dvc repro`"
