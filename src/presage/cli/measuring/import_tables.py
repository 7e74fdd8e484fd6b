"""``presage import``: public measurements as our tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json


@command(
    examples="""
    presage import gavel simulation_throughputs.json
    presage import miso miso.tar.gz --out data/public/miso --no-graphs
    """
)
def import_tables(
    source: Annotated[
        str,
        typer.Argument(
            help="Name of the dataset: gavel, gpumemnet, lucid, miso, neusight, parvagpu, pollux, "
            "timm or torchvision."
        ),
    ],
    path: Annotated[
        Path, typer.Argument(help="File, folder or .tar.gz archive that the source published.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default="data/public/SOURCE", help="Folder to write."),
    ] = None,
    graphs: Annotated[
        bool,
        typer.Option("--graphs/--no-graphs", help="Trace the models of the jobs, for features."),
    ] = True,
    as_json: Json = False,
) -> None:
    """Import a public dataset into tables that Presage can train on."""
    from presage.cli.output.tables_written import print_import
    from presage.pipelines.importers.import_run import DEFAULT_FOLDER, import_source, shown_graphs

    with shown_graphs(enabled=graphs) as cache:
        summary = import_source(source, path, out or DEFAULT_FOLDER / source, graphs=cache)
    print_import(summary, as_json=as_json)
