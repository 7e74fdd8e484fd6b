"""``presage slurm when``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.cluster.when.options import FutureOptions, Gpus, Kinds
from presage.errors import ConfigError, UnknownJobError

if TYPE_CHECKING:
    from presage.schedulers.slurm.when.slurm_snapshot import SlurmCopy
    from presage.schedulers.what_if.variant import Variant

_Jobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOB]...", help="Ids of jobs or arrays; all that wait for GPUs if left out."
    ),
]


@command(
    examples="""
    presage slurm when 1234

    # All waiting jobs
    presage slurm when

    # With fewer GPUs, or GPUs of another type
    presage slurm when 1234 --gpus 1 --gpus 2 --kind a100
    """
)
def when(
    jobs: _Jobs = None,
    *,
    gpus: Gpus = None,
    kinds: Kinds = None,
    futures: FutureOptions,
    as_json: Json = False,
) -> None:
    """Predict when jobs of Slurm start and end, as requested or with other GPUs.

    Slurm's backfilling is simulated from the present state of squeue and sinfo, with run times
    drawn from the forecasts that the bridge has noted. Jobs without a forecast use a random part of
    their time limits. Nothing is changed. Users need the right to run squeue only. Simulations stop
    after 20 seconds: then the complete ones answer.
    """
    import time

    from presage.cli.scheduling.what_if_output import print_starts, stop_after_limit
    from presage.schedulers.slurm.when.slurm_queue import read_state
    from presage.schedulers.slurm.when.slurm_snapshot import copy_slurm
    from presage.schedulers.what_if.future_processes import PROCESSES
    from presage.schedulers.what_if.what_if import what_if

    within_s = futures.within_s
    copied = copy_slurm(read_state(time.time()))
    answers = what_if(
        copied.snapshot,
        _requested_jobs(copied, jobs),
        policy=copied.policy,
        forecaster=copied.forecaster,
        planned_by=copied.planned_by,
        variants=list(_variants(copied, gpus or (), kinds or ())),
        samples=futures.samples,
        horizon_s=futures.horizon_s,
        ends=bool(jobs),
        should_stop=stop_after_limit(),
        processes=PROCESSES,
    )
    print_starts(answers, copied.snapshot, futures, within_s, as_json=as_json)


def _requested_jobs(copied: SlurmCopy, jobs: Sequence[str] | None) -> list[str]:
    """Return the named jobs, or all that wait for GPUs only."""
    snapshot = copied.snapshot
    if not jobs:
        returning = (one.job.job_id for one in snapshot.returning)
        return [*snapshot.pending, *returning, *snapshot.impossible]
    found: list[str] = []
    for name in jobs:
        tasks = copied.jobs_named(name)
        if not tasks:
            raise UnknownJobError(
                f"job {name!r} neither waits nor runs on GPUs; `squeue` lists the jobs of Slurm"
            )
        found += tasks
    return list(dict.fromkeys(found))


def _variants(copied: SlurmCopy, gpus: Sequence[int], kinds: Sequence[str]) -> Iterator[Variant]:
    from presage.schedulers.what_if.variant import AS_REQUESTED, Variant
    from presage.system.text.known_names import did_you_mean

    yield AS_REQUESTED
    yield from (Variant(gpus=number) for number in gpus)
    for kind in kinds:
        if kind not in copied.kinds:
            raise ConfigError(
                f"--kind {kind!r}: no available node has GPUs of this type; "
                f"{did_you_mean(kind, list(copied.kinds))}"
            )
        yield Variant(kinds=copied.kinds[kind])
