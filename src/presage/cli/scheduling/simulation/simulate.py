"""``presage simulate``: a trace of jobs on a cluster, under several policies."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.devices import DevicesFile
from presage.cli.options.inc import IncOptions
from presage.cli.scheduling.policy_list import policy_list
from presage.cli.scheduling.simulation.result_options import ResultOptions
from presage.cli.scheduling.simulation.scenario_options import ScenarioOptions

Policies = Annotated[
    str,
    typer.Option(
        metavar="POLICY[,POLICY...]",
        help="Scheduling policies to compare, each NAME or MODULE:CLASS. Parameters follow the "
        f"name, as in packing:overcommit=2. Policies: {policy_list()}.",
    ),
]


@command(
    examples="""
    # Compare two policies
    presage simulate --trace examples/trace.csv \\
      --cluster examples/cluster.yaml --policy fifo,srtf

    # Predict with a release, co-locate jobs as measured, and write a report
    presage simulate --trace examples/trace.csv --draw-models --load 1.6 \\
      --cluster examples/h200_cluster.yaml --policy sjf,packing \\
      --measured data/profiles/h200 \\
      --predictor data/pretrained/release --report out.html

    # Compare with an earlier run
    presage simulate --trace examples/trace.csv \\
      --cluster examples/cluster.yaml --policy sjf --json > earlier.json
    presage simulate --trace examples/trace.csv --load 1.6 \\
      --cluster examples/cluster.yaml --policy sjf --baseline earlier.json

    # Resize elastic jobs
    presage simulate --trace examples/elastic_trace.csv \\
      --cluster examples/cluster.yaml --policy srtf,elastic
    """
)
def simulate(
    scenario: ScenarioOptions,
    result: ResultOptions,
    inc: IncOptions,
    policy: Policies = "fifo,sjf",
    devices: DevicesFile = None,
) -> None:
    """Simulate a trace of jobs on a cluster and compare scheduling policies.

    Without --measured, all kinds of devices are equally fast and co-located jobs do not slow each
    other down. Equal input gives equal output, byte for byte.
    """
    from presage.cli.scheduling.simulation.runs import run_policies

    names = list(dict.fromkeys(filter(None, map(str.strip, policy.split(",")))))
    scenarios = {name: scenario.scenario(name) for name in names or [""]}
    scenario.check()
    result.check()
    run_policies(scenarios, result, inc)
