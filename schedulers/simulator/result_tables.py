"""What simulations of one trace did, as tables of Arrow: for programs, beside the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from presage.schedulers.core.job_status import Phase
from presage.schedulers.simulator.simulation import Simulation
from presage.schedulers.simulator.timeline import ENDS, timeline_of

if TYPE_CHECKING:
    import pyarrow as pa


def jobs_table(simulated: Mapping[str, Simulation]) -> pa.Table:
    """A row a policy and job, by submission; columns as docs/simulating.md lists them."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("policy", pa.string()),
            ("job_id", pa.string()),
            ("model", pa.string()),
            ("gpus", pa.int32()),
            ("user", pa.string()),
            ("submit_s", pa.float64()),
            ("first_start_s", pa.float64()),
            ("end_s", pa.float64()),
            ("phase", pa.string()),
            ("jct_s", pa.float64()),
            ("waited_s", pa.float64()),
            ("starts", pa.int32()),
            ("overflows", pa.int32()),
            ("attained_device_s", pa.float64()),
        ]
    )
    rows = [row for policy, one in simulated.items() for row in _jobs(policy, one)]
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


def intervals_table(simulated: Mapping[str, Simulation]) -> pa.Table:
    """A row an interval in which a job held a part of a device; by policy, then by its end."""
    import pyarrow as pa

    return pa.concat_tables([_intervals(policy, one) for policy, one in simulated.items()])


def _jobs(policy: str, one: Simulation) -> Iterator[tuple[object, ...]]:
    ended = {over.job.job_id: over for over in one.ended}
    last_s = one.log.entries[-1][0] if one.log.entries else 0.0
    for job in one.ledger.jobs.values():
        over, status = ended.get(job.job_id), one.ledger.status(job.job_id)
        waited_s = status.waited_s
        if status.phase is Phase.PENDING:
            waited_s += last_s - status.since_s
        yield (
            policy,
            job.job_id,
            job.model,
            job.gpus,
            job.user,
            job.submit_s,
            over.first_start_s if over else None,
            over.end_s if over else None,
            status.phase.value,
            over.end_s - job.submit_s if over and over.phase is Phase.FINISHED else None,
            waited_s,
            status.starts,
            status.overflows,
            status.attained_at(last_s),
        )


def _intervals(policy: str, one: Simulation) -> pa.Table:
    import pyarrow as pa

    cluster = one.ledger.cluster
    line = timeline_of(one.log.entries, cluster, {over.job.job_id for over in one.ended})
    held = line.held
    names = pa.array([cluster.name_of(device) for device in range(cluster.devices)], pa.string())
    return pa.table(
        {
            "policy": pa.array([policy] * len(held.job), pa.string()),
            "job_id": pa.array(line.job_ids, pa.string()).take(held.job),
            "device": names.take(held.device),
            "start_s": held.start_s,
            "end_s": held.end_s,
            "compute_milli": held.compute_milli,
            "paused": held.paused,
            "ended_by": pa.array(ENDS, pa.string()).take(held.ended_by),
        }
    )
