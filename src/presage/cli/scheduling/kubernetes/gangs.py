"""``presage kubernetes gangs``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.kubernetes.options import (
    NVIDIA_GPU,
    ClusterOptions,
    PlanningOptions,
    Resource,
    TopologyOptions,
)
from presage.system.text.terminal import Name, Table, print_table, say

if TYPE_CHECKING:
    from presage.schedulers.kubernetes.fleet import FleetOptions

_NUMBERS = ("min_member", "waiting", "released", "bound")


@command(examples="presage kubernetes gangs --context production")
def gangs(cluster: ClusterOptions, resource: Resource = NVIDIA_GPU, as_json: Json = False) -> None:
    """List gangs: how many pods wait, are released and are bound, and why gangs wait."""
    from presage.cli.output.json_output import print_json

    with cluster.connected() as (_, cache):
        snapshot = cache.snapshot()
    rows = _summaries(snapshot, TopologyOptions(resource=resource).fleet_options())
    if as_json:
        print_json(rows)
        return
    print_table(_table(rows))
    for row in rows:
        if row["why"]:
            say(f"{row['gang']}: {row['why']}")


def _summaries(snapshot: Any, fleet_options: FleetOptions) -> list[dict[str, Any]]:
    from presage.schedulers.forecasters.no_forecasts import NoForecasts
    from presage.schedulers.kubernetes.gate.gang_gate import Gate
    from presage.schedulers.kubernetes.gate.pod_gang import group_pods

    found = group_pods(snapshot.pods.values(), snapshot.pod_groups)
    planner = Gate(PlanningOptions().gang_policy(), NoForecasts, fleet_options)
    why_not = planner.blocking_reasons(snapshot, time.time())
    return [gang.summary(why_not.get(job_id, "")) for job_id, gang in found.items()]


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"{len(rows)} gangs")
    for column in ("gang", "state", "needs", "waiting", "released", "bound", "devices"):
        right = column in ("needs", "waiting", "released", "bound")
        table.add_column(column, justify="right" if right else "left")
    for row in rows:
        numbers = (str(row[key]) for key in _NUMBERS)
        table.add_row(Name(str(row["gang"])), str(row["state"]), *numbers, str(row["devices"]))
    return table
