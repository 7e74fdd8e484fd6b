"""``presage models trained-on``."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.output.lineage import print_learnt
from presage.cli.training.models.options import open_registry
from presage.cli.training.options import RegistryUri
from presage.errors import RegistryError
from presage.system.text.terminal import Console


@command(
    examples="""
    presage models trained-on data/profiles/mine
    presage models trained-on mine --machine 3f2a
    """
)
def trained_on(
    campaign: Annotated[
        str,
        typer.Argument(metavar="[CAMPAIGN]", help="Name of a campaign, or its folder of tables."),
    ] = "",
    machine: Annotated[
        str,
        typer.Option(metavar="NAME", help="Only rows of one machine, by the start of its name."),
    ] = "",
    job: Annotated[str, typer.Option(metavar="ID", help="Only rows of one job.")] = "",
    registry: RegistryUri = "",
    as_json: Json = False,
) -> None:
    """List the releases trained on a campaign, a machine or a job, to withdraw bad rows."""
    from presage.models.registry import lineage

    if not (campaign or machine or job):
        raise RegistryError("nothing to search for; name a campaign, --machine NAME or --job ID")
    measurements = lineage.MeasurementFilter(campaign, machine, job)
    with Console(stderr=True).status("reading manifests"):
        releases = lineage.list_releases(open_registry(registry))
    found = lineage.find_training_usage(measurements, releases)
    remedy = lineage.suggest_remedy(measurements, found)
    if as_json:
        document = {"releases": [one.as_json() for one in found], "remedy": remedy}
        print_json(document, sort_keys=True)
    else:
        print_learnt(found, remedy)
