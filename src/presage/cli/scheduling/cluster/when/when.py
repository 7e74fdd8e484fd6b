"""``presage cluster when``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json, seconds_of
from presage.cli.scheduling.cluster.options import ConnectionOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from presage.schedulers.v1 import cluster_pb2 as pb

WITHIN = ["10m", "1h", "24h"]
_VARIANTS = "Variants"


@command(
    examples="""
    presage cluster when resnet-1f2e3d4c

    # All waiting jobs
    presage cluster when

    # With fewer devices, or under another policy
    presage cluster when resnet-1f2e3d4c --gpus 1 --gpus 2 --policy sjf
    """
)
def when(
    connection: ConnectionOptions,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB...]", show_default="all waiting jobs", help="Names of jobs."),
    ] = None,
    *,
    gpus: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Number of devices instead of the requested one. Repeat for several variants.",
            rich_help_panel=_VARIANTS,
        ),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Kind of device instead of the requested ones. Repeat for several variants.",
            rich_help_panel=_VARIANTS,
        ),
    ] = None,
    shares: Annotated[
        list[float] | None,
        typer.Option(
            "--share",
            min=0.001,
            max=1.0,
            help="Share of each device instead of the requested one. Repeat for several variants.",
            rich_help_panel=_VARIANTS,
        ),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="POLICY",
            help="Policy instead of the cluster's. Repeat for several variants.",
            rich_help_panel=_VARIANTS,
        ),
    ] = None,
    within: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DURATION",
            show_default="10m, 1h and 24h",
            help="Print the probability of a start within this time. Repeat for several times.",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of simulated futures.")
    ] = 50,
    horizon_days: Annotated[
        float,
        typer.Option(min=0.001, max=366.0, help="Length of a simulated future, in days."),
    ] = 7.0,
    as_json: Json = False,
) -> None:
    """Predict when jobs start and end, as requested or with other devices or another policy.

    The controller simulates its cluster from now on, with run times drawn from forecasts and later
    arrivals like those so far. Nothing is changed.
    """
    from presage.cli.output.json_output import message_content, print_json
    from presage.cli.scheduling.cluster.when.when_tables import basis_lines, when_table
    from presage.schedulers.v1 import cluster_pb2 as pb
    from presage.system.text.terminal import print_table, say

    texts = within or WITHIN
    request = pb.WhatIfRequest(
        job_ids=jobs or (),
        variants=list(_variants(gpus or (), kinds or (), shares or (), policies or ())),
        samples=samples,
        horizon_s=horizon_days * 86_400,
        within_s=[seconds_of(one, "--within") for one in texts],
    )
    with connection.connected() as client:
        found = client.what_if(request)
    if as_json:
        print_json(message_content(found))
        return
    if not found.answers:
        say("no job waits")
        return
    print_table(when_table(found, texts))
    for line in basis_lines(found):
        say(line)


def _variants(
    gpus: list[int] | tuple[()],
    kinds: list[str] | tuple[()],
    shares: list[float] | tuple[()],
    policies: list[str] | tuple[()],
) -> Iterator[pb.WhatIfVariant]:
    """Yield the request itself and one variant for each option; nothing without options."""
    from presage.schedulers.v1 import cluster_pb2 as pb

    if gpus or kinds or shares or policies:
        yield pb.WhatIfVariant()
    for number in gpus:
        yield pb.WhatIfVariant(gpus=number)
    for kind in kinds:
        yield pb.WhatIfVariant(kinds=[kind])
    for share in shares:
        yield pb.WhatIfVariant(compute_milli=max(1, round(1000 * share)))
    for policy in policies:
        yield pb.WhatIfVariant(policy=policy)
