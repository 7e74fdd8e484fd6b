"""``presage models show``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.output.lineage import print_lineage
from presage.cli.output.releases import print_placement_release, print_release
from presage.cli.training.models.options import (
    Model,
    RefOrFolder,
    ReleaseModel,
    facts_of,
    open_registry,
)
from presage.cli.training.options import RegistryUri
from presage.errors import RegistryError
from presage.system.text.terminal import say

if TYPE_CHECKING:
    from presage.models.registry.registry import Registry


@command(
    examples="""
    presage models show champion
    presage models show champion --lineage
    presage models show 7 --download build/release
    """
)
def show(
    ref: RefOrFolder,
    lineage: Annotated[
        bool,
        typer.Option(
            "--lineage",
            help="Show the provenance: files, run, commit, tables and rows. Only here REF may be "
            "a folder.",
        ),
    ] = False,
    download: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to download the release to; files are verified."),
    ] = None,
    registry: RegistryUri = "",
    model: Model = ReleaseModel.PREDICTORS,
    as_json: Json = False,
) -> None:
    """Show a release: its metrics, devices, training data and versions."""
    if lineage and download is not None:
        raise RegistryError("--download and --lineage exclude each other; run the command twice")
    opened = open_registry(registry, model)
    if lineage:
        _show_lineage(ref, opened, as_json=as_json)
    else:
        _show_release(ref, opened, download, as_json=as_json)


def _show_release(ref: str, registry: Registry, download: Path | None, *, as_json: bool) -> None:
    release = registry.resolve(ref)
    manifest = registry.manifest(release)
    if download is not None:
        registry.download(release.version, download)
    if as_json:
        folder = None if download is None else str(download)
        more = {"decision": release.decision, "manifest": manifest, "folder": folder}
        print_json(facts_of(release) | more, sort_keys=True)
        return
    if manifest.get("kind") == "placement":
        print_placement_release(release, manifest)
    else:
        print_release(release, manifest)
    if download is not None:
        say(f"release folder: {download}")


def _show_lineage(ref: str, registry: Registry, *, as_json: bool) -> None:
    from presage.models.registry import lineage

    facts = lineage.describe_lineage(lineage.find_release(ref, registry))
    if as_json:
        print_json(facts, sort_keys=True)
    else:
        print_lineage(facts)
