"""``presage kubernetes gate``."""

from __future__ import annotations

from presage.cli.command import command
from presage.cli.scheduling.kubernetes.options import (
    ClusterOptions,
    PlanningOptions,
    TopologyOptions,
    until_signal,
)
from presage.cli.scheduling.options import Hazards
from presage.system.text.terminal import say


@command(
    examples="""
    presage kubernetes gate --predictor presage:50051 \\
      --token-file /etc/presage/token --policy gang:near=rack
    """
)
def gate(
    *,
    hazards: Hazards = None,
    planning: PlanningOptions,
    topology: TopologyOptions,
    cluster: ClusterOptions,
) -> None:
    """Hold the pods of a gang back until the whole gang can start, then release them.

    kube-scheduler then binds the pods. Runs until SIGTERM or Ctrl-C.
    """
    from presage.schedulers.forecasters.outage_hazards import read_outage_hazards
    from presage.schedulers.kubernetes.gate.gang_gate import Gate
    from presage.schedulers.kubernetes.gate.gate_loop import run_gate
    from presage.schedulers.kubernetes.gate.writer import Writer

    planner = Gate(
        planning.gang_policy(), planning.forecaster(), topology.fleet_options(),
        hazards=read_outage_hazards(hazards),
    )  # fmt: skip
    with cluster.connected() as (api, cache):
        stopping = until_signal()
        say(f"planning gangs of {api.configuration.host}", err=True)
        run_gate(planner, cache, Writer(api, cache.put), stopping)
