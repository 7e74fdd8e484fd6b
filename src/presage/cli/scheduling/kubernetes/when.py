"""``presage kubernetes when``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.cluster.when.options import FutureOptions, Gpus, Kinds
from presage.cli.scheduling.kubernetes.options import (
    ClusterOptions,
    PlanningOptions,
    TopologyOptions,
)
from presage.errors import UnknownJobError

if TYPE_CHECKING:
    from presage.schedulers.what_if.snapshot import Snapshot
    from presage.schedulers.what_if.variant import Variant

_Gangs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[GANG]...", help="Gangs as NAMESPACE/NAME; all that wait if left out."),
]


@command(
    examples="""
    presage kubernetes when --predictor presage:50051

    # Would one gang start earlier with four devices?
    presage kubernetes when team/llama --gpus 4 --predictor presage:50051
    """
)
def when(
    gangs: _Gangs = None,
    *,
    gpus: Gpus = None,
    kinds: Kinds = None,
    planning: PlanningOptions,
    topology: TopologyOptions,
    cluster: ClusterOptions,
    futures: FutureOptions,
    as_json: Json = False,
) -> None:
    """Predict when gangs of pods start and end, as requested or with other devices.

    The gate's policy is simulated from the present state of the API server, with run times drawn
    from forecasts of the pods' features. Give the policy and the predictor of the gate. Nothing is
    changed. Simulations stop after 20 seconds: then the complete ones answer.
    """
    from presage.cli.scheduling.what_if_output import print_starts, stop_after_limit
    from presage.schedulers.kubernetes.gate.gang_gate import Gate
    from presage.schedulers.kubernetes.gate.gate_snapshot import copy_gate
    from presage.schedulers.what_if.future_processes import PROCESSES
    from presage.schedulers.what_if.what_if import what_if

    within_s = futures.within_s
    make_forecaster = planning.forecaster()
    gate = Gate(planning.gang_policy(), make_forecaster, topology.fleet_options())
    with cluster.connected() as (_, cache):
        snapshot = copy_gate(gate, cache.snapshot(), time.time())
    answers = what_if(
        snapshot,
        _requested_jobs(snapshot, gangs),
        policy=planning.policy,
        forecaster=make_forecaster(),
        variants=list(_variants(gpus or (), kinds or ())),
        samples=futures.samples,
        horizon_s=futures.horizon_s,
        ends=bool(gangs),
        should_stop=stop_after_limit(),
        processes=PROCESSES,
    )
    print_starts(answers, snapshot, futures, within_s, as_json=as_json)


def _requested_jobs(snapshot: Snapshot, gangs: Sequence[str] | None) -> list[str]:
    """Return the named gangs, or all that wait."""
    reserved = [one for one, status in snapshot.active.items() if status.phase == "reserved"]
    waiting = [*reserved, *snapshot.pending, *snapshot.closed]
    for gang in gangs or ():
        if gang not in waiting:
            raise UnknownJobError(
                f"gang {gang!r} does not wait; `presage kubernetes gangs` lists all gangs"
            )
    return list(dict.fromkeys(gangs or waiting))


def _variants(gpus: Sequence[int], kinds: Sequence[str]) -> Iterator[Variant]:
    from presage.schedulers.what_if.variant import AS_REQUESTED, Variant

    yield AS_REQUESTED
    yield from (Variant(gpus=number) for number in gpus)
    yield from (Variant(kinds=(kind,)) for kind in kinds)
