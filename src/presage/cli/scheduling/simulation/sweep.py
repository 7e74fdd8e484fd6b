"""``presage sweep``: simulations of every combination of settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.options.devices import DevicesFile


@command(
    examples="""
    # sweep.yaml:
    #   trace: [monday.csv, tuesday.csv]
    #   cluster: cluster.yaml
    #   policy: [fifo, srtf, packing]
    #   predictor: [none, oracle]
    #   seed: [0, 1, 2]
    presage sweep sweep.yaml --out results
    """
)
def sweep(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="YAML file with the options of `presage simulate`, each a value or a list. Names "
            "have underscores in place of hyphens.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder for the outcomes. Outcomes in it are not computed again."
        ),
    ] = Path("sweep"),
    workers: Annotated[
        int | None,
        typer.Option(show_default="the number of cores", help="Number of worker processes."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help='Run on a Ray cluster; "auto" is the cluster of this machine.',
        ),
    ] = None,
    devices: DevicesFile = None,
    as_json: Json = False,
) -> None:
    """Simulate every combination of the settings in a file.

    A sweep that was interrupted resumes when it is started again with the same --out. The table
    shows means and 95 % confidence intervals over the seeds.
    """
    from presage.cli.scheduling.simulation.sweep_run import run_and_print

    count = (os.cpu_count() or 1) if workers is None else workers
    run_and_print(file, out, count, ray, as_json=as_json)
