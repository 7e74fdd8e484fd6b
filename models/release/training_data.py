"""Training data of a release: its tables, and its rows by campaign and machine.

This is the part ``learnt_from`` of the manifest. It holds nothing that differs between two
trainings on the same tables, such as a time or a commit. The exception are names of folders, which
the release id does not cover (:mod:`presage.models.release.release_id`). Manifests of older
releases have no such part.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from presage.errors import ReleaseError, one_line
from presage.models.release.manifest import (
    parse_integer,
    parse_list,
    parse_object,
    parse_text,
    parse_texts,
)

MANIFEST_KEY = "learnt_from"
_BASE_RELEASE_KEY = "began_with"


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table at the time of training.

    Attributes
    ----------
    rows : int
        Number of rows.
    sha256 : str
        Digest of the file, as ``sha256sum`` prints it.
    """

    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CampaignFolder:
    """A folder of tables.

    Attributes
    ----------
    folder : str
        Path given to the pipeline, such as ``data/profiles/cpu-2``; only the folder's name if it
        lies outside of the checkout.
    campaigns : tuple of str
        Names of the campaigns in the folder.
    tables : mapping of str to TableFile
        Tables by name: ``executions``, ``colocations``, ...
    """

    folder: str
    campaigns: tuple[str, ...]
    tables: Mapping[str, TableFile]


@dataclass(frozen=True, slots=True)
class CampaignRows:
    """Numbers of training rows and held-out rows of one campaign, machine and device class.

    Attributes
    ----------
    device_class : str
        Class of the devices that the rows were measured on.
    executions, colocations : int
        Rows of these tables that a predictor was trained on.
    held_out_executions, held_out_colocations : int
        Rows left out of training, for the evaluation and the gate.
    """

    campaign: str
    machine: str
    device_class: str
    executions: int
    colocations: int
    held_out_executions: int
    held_out_colocations: int

    @property
    def trained(self) -> int:
        """Number of training rows in both tables."""
        return self.executions + self.colocations

    @property
    def held_out(self) -> int:
        """Number of held-out rows in both tables."""
        return self.held_out_executions + self.held_out_colocations


@dataclass(frozen=True, slots=True)
class BaseRelease:
    """Release whose networks were fine-tuned.

    Attributes
    ----------
    networks : mapping of str to str
        sha256 of the files of its networks, by name.
    training_data : TrainingData or None
        Training data of these networks; None if that release does not record it.
    """

    release_id: str
    networks: Mapping[str, str]
    training_data: TrainingData | None


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Tables and rows that a release was trained on, and the release that it was fine-tuned from.

    Attributes
    ----------
    folders : tuple of CampaignFolder
        Tables that the pipeline read.
    rows : tuple of CampaignRows
        Numbers of rows by campaign, machine and device class.
    base_release : BaseRelease or None
        None if the networks were trained from scratch.
    """

    folders: tuple[CampaignFolder, ...]
    rows: tuple[CampaignRows, ...]
    base_release: BaseRelease | None = None

    def all_rows(self) -> Iterator[tuple[CampaignRows, str]]:
        """Yield every group of rows and the id of the base release that contributed it.

        The id is "" for rows of this release itself.
        """
        for group in self.rows:
            yield group, ""
        if self.base_release is not None and self.base_release.training_data is not None:
            for group, through in self.base_release.training_data.all_rows():
                yield group, through or self.base_release.release_id

    def is_complete(self) -> bool:
        """Return whether the training data of all base releases is recorded too."""
        base = self.base_release
        return base is None or (base.training_data is not None and base.training_data.is_complete())

    def restrict_to(self, classes: Collection[str]) -> TrainingData:
        """Return the training data of networks of these device classes."""
        rows = tuple(group for group in self.rows if group.device_class in classes)
        names = {group.campaign for group in rows}
        folders = tuple(folder for folder in self.folders if names.intersection(folder.campaigns))
        return TrainingData(folders, rows, self.base_release)

    def as_json(self) -> dict[str, Any]:
        """Return the part of the manifest that :func:`parse_training_data` reads."""
        content: dict[str, Any] = json.loads(json.dumps(_as_dict(self)))  # lists, not tuples
        if self.base_release is None:
            del content[_BASE_RELEASE_KEY]
        return content


def read_training_data(manifest: Mapping[str, Any], where: str) -> TrainingData | None:
    """Return the training data that a manifest records; None if it records none.

    Raises
    ------
    ReleaseError
        That part of the manifest is malformed; the message names the field.
    """
    try:
        return parse_training_data(manifest.get(MANIFEST_KEY))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ReleaseError(
            f"{where}: {MANIFEST_KEY} cannot be read ({type(error).__name__}: {one_line(error)}); "
            "restore the release, or rebuild it with `dvc repro`"
        ) from error


def parse_training_data(value: Any) -> TrainingData | None:
    """Return what :meth:`TrainingData.as_json` wrote; None if ``value`` is None.

    Raises
    ------
    LookupError, TypeError, ValueError, AttributeError
        The value is malformed.
    """
    if value is None:
        return None
    content = parse_object(value, MANIFEST_KEY)
    return TrainingData(
        folders=parse_folders(content["folders"]),
        rows=tuple(
            _parse_rows(group, i) for i, group in enumerate(parse_list(content["rows"], "rows"))
        ),
        base_release=_parse_base_release(content.get(_BASE_RELEASE_KEY)),
    )


def parse_folders(value: Any) -> tuple[CampaignFolder, ...]:
    """Return the folders of tables in a manifest, or in ``campaigns.json`` of featurize."""
    folders = parse_list(value, "folders")
    return tuple(_parse_folder(folder, position) for position, folder in enumerate(folders))


def _as_dict(data: TrainingData) -> dict[str, Any]:
    """Return training data under the manifest's keys, base releases included."""
    base = data.base_release
    return {
        "folders": [asdict(folder) for folder in data.folders],
        "rows": [asdict(group) for group in data.rows],
        _BASE_RELEASE_KEY: None
        if base is None
        else {
            "release_id": base.release_id,
            "networks": dict(base.networks),
            MANIFEST_KEY: None if base.training_data is None else _as_dict(base.training_data),
        },
    }


def _parse_folder(value: Any, position: int) -> CampaignFolder:
    where = f"folders[{position}]"
    content = parse_object(value, where)
    tables = {
        name: TableFile(
            parse_integer(parse_object(table, f"{where}.{name}")["rows"], f"{where}.{name}.rows"),
            parse_text(table["sha256"], f"{where}.{name}.sha256"),
        )
        for name, table in parse_object(content["tables"], f"{where}.tables").items()
    }
    campaigns = parse_texts(content["campaigns"], f"{where}.campaigns")
    return CampaignFolder(parse_text(content["folder"], f"{where}.folder"), campaigns, tables)


_COUNTS: Sequence[str] = [f.name for f in fields(CampaignRows) if f.type == "int"]
_NAMES: Sequence[str] = [f.name for f in fields(CampaignRows) if f.type == "str"]


def _parse_rows(value: Any, position: int) -> CampaignRows:
    where = f"rows[{position}]"
    content = parse_object(value, where)
    names = {name: parse_text(content[name], f"{where}.{name}") for name in _NAMES}
    counts = {name: parse_integer(content[name], f"{where}.{name}") for name in _COUNTS}
    return CampaignRows(**names, **counts)  # type: ignore[arg-type]


def _parse_base_release(value: Any) -> BaseRelease | None:
    if value is None:
        return None
    content = parse_object(value, _BASE_RELEASE_KEY)
    return BaseRelease(
        parse_text(content["release_id"], "began_with.release_id"),
        {
            name: parse_text(digest, f"began_with.networks.{name}")
            for name, digest in parse_object(content["networks"], "began_with.networks").items()
        },
        parse_training_data(content["learnt_from"]),
    )
