"""Import of one source: from its files to a campaign folder and a summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from presage.errors import TableError
from presage.features.tables import schemas as tables
from presage.pipelines.importers import IMPORTERS
from presage.pipelines.importers.imported import Imported
from presage.pipelines.importers.public_models.graph_cache import GraphCache, NoGraphs
from presage.pipelines.importers.public_models.trace_ahead import MissingGraphs, trace_ahead
from presage.pipelines.importers.published_file import DOCS, unpack
from presage.system.text.known_names import did_you_mean

DEFAULT_FOLDER = Path("data/public")


@dataclass(frozen=True, slots=True)
class Summary:
    """Rows that an import wrote and skipped.

    Attributes
    ----------
    tables : Mapping of str to int
        Rows of each table that was written.
    skipped, notes : Mapping of str to int
        As in :class:`~presage.pipelines.importers.imported.Imported`.
    """

    source: str
    url: str
    licence: str
    folder: str
    tables: Mapping[str, int]
    skipped: Mapping[str, int]
    notes: Mapping[str, int]


def import_source(source: str, path: Path, folder: Path, *, graphs: GraphCache) -> Summary:
    """Read the publication of ``source`` at ``path`` and write it as a campaign to ``folder``.

    Parameters
    ----------
    source : str
        A key of ``IMPORTERS``.
    path : Path
        A file, a folder, or a .tar.gz of the upstream repository.

    Raises
    ------
    TableError
        The source is unknown; a file is missing, corrupt, empty or of another layout; or no row
        can be mapped.
    """
    if source not in IMPORTERS:
        raise TableError(f"no source {source!r}; {did_you_mean(source, sorted(IMPORTERS))}")
    importer = IMPORTERS[source]
    imported = Imported(importer.origin)
    with unpack(path) as readable:
        if not isinstance(graphs, NoGraphs):
            requested = MissingGraphs(graphs)
            importer.read(readable, Imported(importer.origin), requested)
            trace_ahead(requested, graphs)
        importer.read(readable, imported, graphs)
    measured = ("executions", "colocations", "scale_out", "operators")
    if not any(imported.count(table) for table in measured):
        why = "; ".join(f"{rows} x {reason}" for reason, rows in imported.skipped.items())
        raise TableError(f"{path}: no row of it can be mapped ({why or 'it has none'}); {DOCS}")
    imported.write(folder)
    return Summary(
        source=source,
        url=importer.origin.url,
        licence=importer.origin.licence,
        folder=str(folder),
        tables={name: imported.count(name) for name in tables.TABLES if imported.count(name)},
        skipped=dict(sorted(imported.skipped.items())),
        notes=dict(sorted(imported.notes.items())),
    )


@contextmanager
def shown_graphs(*, enabled: bool) -> Iterator[GraphCache]:
    """Yield a graph cache that prints the graph being traced to standard error."""
    from presage.system.text.terminal import Console, styled

    if not enabled:
        yield NoGraphs()
        return
    console = Console(stderr=True)
    with console.status("reading") as status:
        traced = 0

        def show(recipe: str) -> None:
            nonlocal traced
            traced += 1
            model = recipe.rsplit(maxsplit=1)[-1]
            status.update(styled(f"tracing graph {traced}: {model}", ""))

        yield GraphCache(on_trace=show)
