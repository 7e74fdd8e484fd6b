"""What a release learnt from: which tables, and how many rows of which campaign and machine.

It is a part of the manifest, so it names nothing that differs between two trainings on the same
tables, such as a time or a commit. The exception are names of folders, which the release id does
not cover (:mod:`presage.models.release.release_id`). Older manifests have no such part.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from presage.errors import ReleaseError, one_line
from presage.models.release.manifest import by_name, entries, text, texts, whole

MANIFEST_KEY = "learnt_from"


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table as it was read.

    Attributes
    ----------
    sha256 : str
        Of the file, as ``sha256sum`` says it.
    """

    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CampaignFolder:
    """A folder of tables.

    Attributes
    ----------
    folder : str
        As the pipeline was given it, such as ``data/profiles/cpu-2``; of one outside of the
        checkout its name alone.
    campaigns : tuple of str
        Names of the campaigns whose rows lie there.
    tables : mapping of str to TableFile
        By name: ``executions``, ``colocations``, ...
    """

    folder: str
    campaigns: tuple[str, ...]
    tables: Mapping[str, TableFile]


@dataclass(frozen=True, slots=True)
class CampaignRows:
    """How many rows of a campaign and machine taught a release, and how many it was judged by.

    Attributes
    ----------
    device_class : str
        Of the devices they were measured on.
    executions, colocations : int
        Rows of these tables that taught a predictor.
    held_out_executions, held_out_colocations : int
        Rows kept from it: those that its evaluation and the gate judge by.
    """

    campaign: str
    machine: str
    device_class: str
    executions: int
    colocations: int
    held_out_executions: int
    held_out_colocations: int

    @property
    def taught(self) -> int:
        """Rows of either table that taught a predictor."""
        return self.executions + self.colocations

    @property
    def held_out(self) -> int:
        """Rows of either table that it is judged by."""
        return self.held_out_executions + self.held_out_colocations


@dataclass(frozen=True, slots=True)
class Beginning:
    """The release whose networks were gone on from.

    Attributes
    ----------
    networks : mapping of str to str
        Their files' sha256, by name.
    learnt_from : LearntFrom or None
        What had taught them; None where that release does not say.
    """

    release_id: str
    networks: Mapping[str, str]
    learnt_from: LearntFrom | None


@dataclass(frozen=True, slots=True)
class LearntFrom:
    """Tables, rows by campaign and machine, and what was there before them."""

    folders: tuple[CampaignFolder, ...]
    rows: tuple[CampaignRows, ...]
    began_with: Beginning | None = None

    def all_rows(self) -> Iterator[tuple[CampaignRows, str]]:
        """Every group of rows, and the release by whose networks they came; "" of its own."""
        for group in self.rows:
            yield group, ""
        if self.began_with is not None and self.began_with.learnt_from is not None:
            for group, through in self.began_with.learnt_from.all_rows():
                yield group, through or self.began_with.release_id

    def is_whole(self) -> bool:
        """Whether all that taught it is known, by whichever way it came."""
        before = self.began_with
        return before is None or (before.learnt_from is not None and before.learnt_from.is_whole())

    def of_classes(self, classes: Collection[str]) -> LearntFrom:
        """What taught networks of these classes of devices."""
        rows = tuple(group for group in self.rows if group.device_class in classes)
        named = {group.campaign for group in rows}
        folders = tuple(one for one in self.folders if named.intersection(one.campaigns))
        return LearntFrom(folders, rows, self.began_with)

    def as_json(self) -> dict[str, Any]:
        """As the manifest holds it; :func:`read_learnt_from` reads it back."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # of lists, not tuples
        if self.began_with is None:
            del content["began_with"]
        return content


def learnt_from(manifest: Mapping[str, Any], where: str) -> LearntFrom | None:
    """What a manifest says; None of one that was made before manifests did.

    Raises
    ------
    ReleaseError
        It says something else; names the place.
    """
    try:
        return read_learnt_from(manifest.get(MANIFEST_KEY))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ReleaseError(
            f"{where}: {MANIFEST_KEY} cannot be read ({type(error).__name__}: {one_line(error)}); "
            "restore the release, or make it again with `dvc repro`"
        ) from error


def read_learnt_from(value: Any) -> LearntFrom | None:
    """What :meth:`LearntFrom.as_json` wrote; None of None. Anything else is a ValueError."""
    if value is None:
        return None
    content = by_name(value, MANIFEST_KEY)
    return LearntFrom(
        folders=read_folders(content["folders"]),
        rows=tuple(_group(one, i) for i, one in enumerate(entries(content["rows"], "rows"))),
        began_with=_beginning(content.get("began_with")),
    )


def read_folders(value: Any) -> tuple[CampaignFolder, ...]:
    """Folders of tables, as the manifest and ``campaigns.json`` of featurize hold them."""
    return tuple(_folder(one, i) for i, one in enumerate(entries(value, "folders")))


def _folder(value: Any, position: int) -> CampaignFolder:
    where = f"folders[{position}]"
    content = by_name(value, where)
    tables = {
        name: TableFile(
            whole(by_name(one, f"{where}.{name}")["rows"], f"{where}.{name}.rows"),
            text(one["sha256"], f"{where}.{name}.sha256"),
        )
        for name, one in by_name(content["tables"], f"{where}.tables").items()
    }
    campaigns = texts(content["campaigns"], f"{where}.campaigns")
    return CampaignFolder(text(content["folder"], f"{where}.folder"), campaigns, tables)


_COUNTS: Sequence[str] = [f.name for f in fields(CampaignRows) if f.type == "int"]
_NAMES: Sequence[str] = [f.name for f in fields(CampaignRows) if f.type == "str"]


def _group(value: Any, position: int) -> CampaignRows:
    where = f"rows[{position}]"
    content = by_name(value, where)
    names = {name: text(content[name], f"{where}.{name}") for name in _NAMES}
    counts = {name: whole(content[name], f"{where}.{name}") for name in _COUNTS}
    return CampaignRows(**names, **counts)  # type: ignore[arg-type]


def _beginning(value: Any) -> Beginning | None:
    if value is None:
        return None
    content = by_name(value, "began_with")
    return Beginning(
        text(content["release_id"], "began_with.release_id"),
        {
            name: text(digest, f"began_with.networks.{name}")
            for name, digest in by_name(content["networks"], "began_with.networks").items()
        },
        read_learnt_from(content["learnt_from"]),
    )
