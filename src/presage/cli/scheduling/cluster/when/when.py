"""``presage cluster when``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from presage.cli.command import command
from presage.cli.options.common import Json, seconds_of
from presage.cli.scheduling.cluster.options import ConnectionOptions, WaitingJobs
from presage.cli.scheduling.cluster.when.options import WITHIN, FutureOptions, VariantOptions

if TYPE_CHECKING:
    from presage.schedulers.v1 import cluster_pb2 as pb


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
    jobs: WaitingJobs = None,
    *,
    variants: VariantOptions,
    futures: FutureOptions,
    as_json: Json = False,
) -> None:
    """Predict when jobs start and end, as requested or with other devices or another policy.

    The controller simulates its cluster from now on, with run times drawn from forecasts and later
    arrivals like those so far. Nothing is changed.
    """
    from presage.cli.output.json_output import message_content, print_json
    from presage.cli.scheduling.cluster.when.when_tables import print_answers

    within = futures.within or WITHIN
    request = _request(jobs or (), within, variants, futures)
    with connection.connected() as client:
        found = client.what_if(request)
    if as_json:
        print_json(message_content(found))
    else:
        print_answers(found, within)


def _request(
    jobs: Sequence[str], within: Sequence[str], variants: VariantOptions, futures: FutureOptions
) -> pb.WhatIfRequest:
    from presage.schedulers.v1 import cluster_pb2 as pb

    return pb.WhatIfRequest(
        job_ids=jobs,
        variants=list(variants.messages()),
        samples=futures.samples,
        horizon_s=futures.horizon_s,
        within_s=[seconds_of(one, "--within") for one in within],
    )
