"""Options and arguments of ``presage models``, and the releases that they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.errors import ConfigError
from presage.system.text.terminal import say

if TYPE_CHECKING:
    from presage.models.registry.registered_release import RegisteredRelease
    from presage.models.registry.registry import Registry
    from presage.models.registry.release_kind import ReleaseKind

Ref = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        help="A release: champion, challenger, previous, a version, or the start of a release id.",
    ),
]
RELEASE_OR_FOLDER = (
    "A release: champion, challenger, previous, a version, the start of a release id, or a release "
    "folder."
)
RefOrFolder = Annotated[str, typer.Argument(metavar="REF|DIR", help=RELEASE_OR_FOLDER)]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """What the promotion journal records of a change."""

    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Reason, recorded in the promotion history.")
    ] = ""
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="NAME",
            show_default="user@host",
            help="Name recorded in the promotion history.",
        ),
    ] = ""


class ReleaseModel(StrEnum):
    """Registered model, by the kind of its releases."""

    PREDICTORS = "predictors"
    PLACEMENT = "placement"


Model = Annotated[
    ReleaseModel,
    typer.Option("--model", help="Kind of releases: predictors, or placement policies."),
]


def open_registry(uri: str, model: ReleaseModel = ReleaseModel.PREDICTORS) -> Registry:
    """Open a registry of a kind of releases; "" is the configured one."""
    from presage.models.registry.registry import Registry
    from presage.models.registry.uri import configured_uri

    return Registry(uri or configured_uri(), release_kind(model))


def release_kind(model: ReleaseModel) -> ReleaseKind:
    """Return a kind of releases."""
    if model is ReleaseModel.PREDICTORS:
        from presage.models.registry.release_kind import PREDICTORS

        return PREDICTORS
    from presage.placement.stage.release_kind import PLACEMENT

    return PLACEMENT


def load_folder(folder: Path, model: ReleaseModel = ReleaseModel.PREDICTORS) -> Any:
    """Return the release in a folder, of a kind.

    Raises
    ------
    ReleaseError
        The folder is no release of this kind, or is corrupt.
    """
    return release_kind(model).load(folder)


@contextmanager
def loaded_release(
    ref: str, uri: str, model: ReleaseModel = ReleaseModel.PREDICTORS
) -> Iterator[Any]:
    """Yield a release, by its folder or by its name in the registry."""
    with TemporaryDirectory() as folder:
        if is_folder(ref):
            yield load_folder(Path(ref), model)
        else:
            registry = open_registry(uri, model)
            version = registry.resolve(ref).version
            yield registry.download(version, Path(folder) / "release")


def is_folder(ref: str) -> bool:
    """Return whether a release is named by its folder, not by its name in a registry.

    Raises
    ------
    ConfigError
        It is a path, but not of a folder.
    """
    path = Path(ref)
    if not path.is_dir() and (path.exists() or "/" in ref):
        raise ConfigError(f"{ref}: not a release folder; name a folder, or a registered release")
    return path.is_dir()


def facts_of(release: RegisteredRelease) -> dict[str, Any]:
    """Return a release as JSON content, without the table of the gate's decision."""
    full = release.decision
    decision = full and {"outcome": full["outcome"], "reason": full["reason"]}
    return asdict(release) | {"decision": decision}


def say_withdrawn(before: RegisteredRelease | None) -> None:
    """Say that a former champion is not promoted again automatically."""
    if before is not None:
        say(
            f"release {before.release_id} is withdrawn: `dvc repro` does not promote it again, "
            f"`presage models promote {before.release_id}` does"
        )
