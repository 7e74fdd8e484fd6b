"""Where a release came from, and which releases came from a campaign.

What a release learnt from is in its manifest, and so in its id. What differs between two makings
of equal bytes (commit, lock, who, when) is in the registry, where ``dvc repro`` registered it.
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

# Releases of a checkout that may answer without being registered.
LOCAL_FOLDERS = (Path("data/release"), Path("data/pretrained/release"))
_REMOVE_FROM = "out of ingest and featurize in dvc.yaml, or the rows out of its tables"
# Campaigns that a stage makes: what is taken out of their tables alone comes back.
_REBUILT_CAMPAIGNS = {
    "data/profiles/local": "take the rows out of data/profiles/local, `dvc commit -f profile`",
    "data/outcomes/tables": "name the outcomes in params.yaml under outcomes.withdrawn",
}
UNCHANGED, CHANGED, ABSENT = "as learnt from", "changed since", "not here"


@dataclass(frozen=True)
class ReleaseRecord:
    """A release: its manifest, and where it is.

    Attributes
    ----------
    folder : Path or None
        Where its files lie; None of one that is in the registry alone.
    registered : RegisteredRelease or None
        What the registry says of it; None of one that is not there.
    """

    manifest: Mapping[str, Any]
    folder: Path | None
    registered: RegisteredRelease | None

    @property
    def release_id(self) -> str:
        """Its id."""
        return str(self.manifest["release_id"])

    @property
    def name(self) -> str:
        """What a person may call it by: its version, else its folder."""
        if self.registered is not None:
            return f"version {self.registered.version}"
        return str(self.folder)

    @property
    def aliases(self) -> tuple[str, ...]:
        """Of its version."""
        return () if self.registered is None else self.registered.aliases

    @property
    def training_data(self) -> TrainingData | None:
        """What its manifest says; None of an older one."""
        return read_training_data(self.manifest, f"release {self.release_id}")


def find_release(ref: str, registry: Registry) -> ReleaseRecord:
    """Release that a version, alias, id or folder names.

    An id that the registry does not have may be that of a release of this checkout, or of the
    installed one.

    Raises
    ------
    RegistryError
        There is none.
    ReleaseError
        The folder is no release, or is damaged.
    """
    try:
        registered = registry.resolve(ref)
    except RegistryError:
        if ref and Path(ref).is_dir():
            versions: list[RegisteredRelease] = []
            with suppress(RegistryError):  # a folder needs none
                versions = registry.versions()
            return _load_record(Path(ref), versions)
        for found in _local_releases((), (*LOCAL_FOLDERS, pretrained_release())):
            if len(ref) >= SHORTEST_PREFIX and found.release_id.startswith(ref):
                return found
        raise
    return ReleaseRecord(registry.manifest(registered), None, registered)


def list_releases(registry: Registry) -> list[ReleaseRecord]:
    """Releases of the registry, newest first, and those of this checkout that it does not have."""
    versions = registry.versions()[::-1]
    found = [ReleaseRecord(_read_manifest(registry, one), None, one) for one in versions]
    return found + [
        one for one in _local_releases(versions, LOCAL_FOLDERS) if one.registered is None
    ]


def _read_manifest(registry: Registry, one: RegisteredRelease) -> dict[str, Any]:
    """Of a release; where its files are gone, no more than its id: what it learnt is not known."""
    try:
        return registry.manifest(one)
    except (RegistryError, ReleaseError):
        return {"release_id": one.release_id}


def _local_releases(
    versions: Sequence[RegisteredRelease], folders: Sequence[Path]
) -> Iterator[ReleaseRecord]:
    for folder in folders:
        with suppress(ReleaseError):
            yield _load_record(folder, versions)


def _load_record(folder: Path, versions: Sequence[RegisteredRelease]) -> ReleaseRecord:
    release = load_release(folder)
    registered = next((one for one in versions if one.release_id == release.release_id), None)
    return ReleaseRecord(release.manifest, folder, registered)


# From a release to what it is made of ----------------------------------------------------------


def describe_lineage(release: ReleaseRecord) -> dict[str, Any]:
    """Everything that is known of where a release came from; what is not known is None."""
    told, registered = release.training_data, release.registered
    return {
        "release_id": release.release_id,
        "version": None if registered is None else registered.version,
        "aliases": list(release.aliases),
        "folder": None if release.folder is None else str(release.folder),
        "predictors": {name: one["sha256"] for name, one in release.manifest["predictors"].items()},
        "data_digest": release.manifest["data_digest"],
        "run": None if registered is None else _describe_run(registered),
        "learnt_from": None if told is None else told.as_json(),
        "tables_here": {}
        if told is None
        else {f.folder: compare_local_tables(f) for f in told.folders},
    }


def _describe_run(registered: RegisteredRelease) -> dict[str, Any]:
    """Of MLflow's run: where, when and by whom it was registered."""
    return {
        "run_id": registered.run_id,
        "registered_at": registered.registered_at,
        "registered_by": registered.registered_by or None,
        "git_commit": registered.git_commit or None,
        "git_changed": registered.git_changed.split(", ") if registered.git_changed else [],
        "dvc_lock_sha256": registered.dvc_lock_sha256 or None,
    }


def compare_local_tables(campaign: CampaignFolder) -> dict[str, str]:
    """Of each table that was learnt from: whether the one in this checkout still is that one."""
    folder, found = Path(campaign.folder), {}
    for name, table in campaign.tables.items():
        try:
            digest = hashlib.sha256((folder / f"{name}.parquet").read_bytes()).hexdigest()
        except OSError:
            found[name] = ABSENT
        else:
            found[name] = UNCHANGED if digest == table.sha256 else CHANGED
    return found


# From measurements to the releases that learnt from them ---------------------------------------


@dataclass(frozen=True)
class MeasurementFilter:
    """Which rows are asked about: all that is said must hold.

    Attributes
    ----------
    campaign : str
        Name of a campaign, or a folder of tables, as it is called in dvc.yaml or the last part
        of that; "" for any.
    machine : str
        Beginning of a machine's name in the tables; "" for any.
    job : str
        Id of a job; "" for any. A release tells its jobs and its campaigns apart, so that it may
        have learnt the job from another campaign than this one.
    """

    campaign: str = ""
    machine: str = ""
    job: str = ""

    def include(self, rows: CampaignRows, campaigns: frozenset[str]) -> bool:
        """Whether these rows are among them; ``campaigns`` are those that are meant."""
        is_campaign = not self.campaign or rows.campaign in campaigns
        return is_campaign and rows.machine.startswith(self.machine)


@dataclass(frozen=True)
class TrainingUsage:
    """What a release has of some measurements.

    Attributes
    ----------
    is_known : bool
        Whether all that taught it is known: where it is not, there may be more.
    rows : tuple of (CampaignRows, str)
        Groups of rows that it learnt from or is judged by, and the release through whose
        networks they came, "" of its own.
    folders : tuple of str
        Where they lay.
    is_single_job : bool
        Whether a job was asked for, whose rows nobody has counted: it is among these.
    """

    release: ReleaseRecord
    is_known: bool
    rows: tuple[tuple[CampaignRows, str], ...]
    folders: tuple[str, ...]
    is_single_job: bool

    @property
    def trained(self) -> int:
        """Rows that taught it; jobs where one was asked for."""
        rows = sum(rows.trained for rows, _ in self.rows)
        return min(rows, 1) if self.is_single_job else rows

    @property
    def held_out(self) -> int:
        """Rows that it is judged by; none of a job that taught it."""
        of_own = (rows.held_out for rows, through in self.rows if not through)
        return 0 if self.is_single_job else sum(of_own)

    @property
    def through(self) -> str:
        """The release through whose networks all of it came; "" where any is its own."""
        names = {through for _, through in self.rows}
        return names.pop() if len(names) == 1 else ""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
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
    asked: MeasurementFilter, releases: Sequence[ReleaseRecord]
) -> list[TrainingUsage]:
    """What each release has of them, in order.

    Raises
    ------
    RegistryError
        No release names such a campaign, machine or job: it may be misspelt.
    """
    wider = replace(asked, job="")
    if (asked.campaign or asked.machine) and not any(_find_usage(wider, r).rows for r in releases):
        _raise_unknown_names(asked, releases)
    found = [_find_usage(asked, release) for release in releases]
    if asked.job and not _is_held_out(asked.job) and not any(one.rows for one in found):
        silent = sum(not one.is_known for one in found)
        raise RegistryError(
            f"none of {len(releases)} releases learnt job {asked.job!r} from these measurements "
            f"({silent} do not say all their jobs); its id is as in the campaign's jobs.parquet"
        )
    return found


def _is_held_out(job_id: str) -> bool:
    return bool(job_folds([job_id])[0] == HELD_OUT_FOLD)


def _find_usage(asked: MeasurementFilter, release: ReleaseRecord) -> TrainingUsage:
    told = release.training_data
    if told is None:
        return TrainingUsage(release, False, (), (), bool(asked.job))
    folders = _all_folders(told)
    meant = [one for one in folders if _is_named(asked.campaign, one)]
    campaigns = frozenset(name for one in meant for name in one.campaigns) | {asked.campaign}
    rows = tuple(pair for pair in told.all_rows() if asked.include(pair[0], campaigns))
    known = told.is_complete()
    if asked.job:
        jobs = parse_job_digests(release.manifest.get("trained_on"))
        known = known and jobs is not None
        if job_digest(asked.job) not in (jobs or ()):
            rows = ()
    named = {group.campaign for group, _ in rows}
    where = tuple(one.folder for one in folders if named.intersection(one.campaigns))
    return TrainingUsage(release, known, rows, where, bool(asked.job))


def _all_folders(told: TrainingData) -> tuple[CampaignFolder, ...]:
    before = told.base_release
    if before is None or before.training_data is None:
        return told.folders
    return told.folders + _all_folders(before.training_data)


def _is_named(campaign: str, one: CampaignFolder) -> bool:
    """Whether a folder is called that; a campaign of the same name lies wherever it does."""
    path, said = Path(one.folder), Path(campaign)
    if said.is_relative_to(Path.cwd()):
        said = said.relative_to(Path.cwd())
    return bool(campaign) and said in (path, Path(path.name))


def _raise_unknown_names(asked: MeasurementFilter, releases: Sequence[ReleaseRecord]) -> None:
    groups = [g for r in releases if r.training_data for g, _ in r.training_data.all_rows()]
    campaigns = ", ".join(sorted({group.campaign for group in groups})) or "none"
    silent = sum(release.training_data is None for release in releases)
    what = " and ".join(
        f"{noun} {name!r}"
        for noun, name in (("campaign", asked.campaign), ("machine", asked.machine))
        if name
    )
    raise RegistryError(
        f"none of {len(releases)} releases names {what} ({silent} do not say what they learnt "
        f"from); campaigns that are named: {campaigns}"
    )


def suggest_remedy(asked: MeasurementFilter, found: Sequence[TrainingUsage]) -> str:
    """What an operator may do who wants these measurements gone."""
    champion = next((one for one in found if CHAMPION in one.release.aliases), None)
    if asked.job and _is_held_out(asked.job):
        return f"job {asked.job} is held out: no release learns from it, and all are judged by it"
    if champion is None:
        return "there is no champion to take off"
    name = f"champion {champion.release.release_id}"
    if champion.trained:
        what = "this job" if asked.job else f"{champion.trained:,} of these rows"
        return f"{name} learnt from {what}: {_suggest_replacement(found)}; {_suggest_removal(champion)}"
    if not champion.is_known:
        return f"{name} does not say all that it learnt from"
    if champion.held_out:
        judged = f"was judged by {champion.held_out:,} of these rows"
        return f"{name} learnt from none, but {judged}: {_suggest_removal(champion)}"
    return f"{name} learnt from none"


def _suggest_replacement(found: Sequence[TrainingUsage]) -> str:
    """The newest release that surely learnt from none, and how it becomes champion."""
    clean = [
        one.release
        for one in found
        if one.is_known and not one.trained and one.release.registered is not None
    ]
    if not clean:
        return "of no registered release it is known that it learnt from none"
    # Somebody took a withdrawn one off, for a reason that may still hold.
    stands = [one for one in clean if one.registered and not one.registered.withdrawn_at]
    if not stands:
        return f"{clean[0].name} did not, but a person took it off: `presage models history`"
    if PREVIOUS in stands[0].aliases:
        return "the one before did not, `presage models rollback --reason TEXT`"
    command = f"presage models promote {stands[0].release_id} --force --reason TEXT"
    return f"{stands[0].name} is the newest that did not, `{command}`"


def _suggest_removal(one: TrainingUsage) -> str:
    """How the next release is made without them."""
    if one.through:
        return (
            f"they came with the networks of release {one.through}, which have to be made again "
            "without them (docs/pretrained.md)"
        )
    ways = [
        _REBUILT_CAMPAIGNS.get(folder, f"take {folder} {_REMOVE_FROM}") for folder in one.folders
    ]
    return f"{', '.join(ways) or f'take the campaign {_REMOVE_FROM}'}, and `dvc repro`"
