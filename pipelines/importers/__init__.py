"""Importers of published measurements into our tables, with one module per source.

Each module has ``ORIGIN`` and ``read(path, imported, graphs)``, which adds the rows of a file or a
folder, in upstream's layout or the tidied one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from presage.pipelines.importers import (
    gavel,
    gpumemnet,
    lucid,
    miso,
    neusight,
    parvagpu,
    pollux,
    timm_results,
    torchvision_results,
)
from presage.pipelines.importers.imported import Imported, Origin
from presage.pipelines.importers.public_models.graph_cache import GraphCache


@dataclass(frozen=True)
class Importer:
    """Reader of one source: ``read(path, imported, graphs)`` adds the rows of a file or folder."""

    origin: Origin
    read: Callable[[Path, Imported, GraphCache], None]


IMPORTERS: Mapping[str, Importer] = {
    source.ORIGIN.name: Importer(source.ORIGIN, source.read)
    for source in (
        gavel,
        gpumemnet,
        lucid,
        miso,
        neusight,
        parvagpu,
        pollux,
        timm_results,
        torchvision_results,
    )
}
