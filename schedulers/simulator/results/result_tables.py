"""Results of simulations as Arrow tables, for programs that do not read the report page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from presage.schedulers.core.job_status import Phase
from presage.schedulers.simulator.results.timeline import ENDS, make_timeline
from presage.schedulers.simulator.simulation import Simulation

if TYPE_CHECKING:
    import pyarrow as pa


def jobs_table(simulations: Mapping[str, Simulation]) -> pa.Table:
    """Return one row per policy and job, by submission.

    docs/schedulers/simulating.md lists the columns.
    """
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
    rows = [row for policy, one in simulations.items() for row in _job_rows(policy, one)]
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


def intervals_table(simulations: Mapping[str, Simulation]) -> pa.Table:
    """Return one row per interval of an allocation on one device, by policy, then by its end."""
    import pyarrow as pa

    return pa.concat_tables([_intervals(policy, one) for policy, one in simulations.items()])


def _job_rows(policy: str, simulation: Simulation) -> Iterator[tuple[object, ...]]:
    results = {result.job.job_id: result for result in simulation.results}
    entries, ledger = simulation.log.entries, simulation.ledger
    last_s = entries[-1][0] if entries else 0.0
    for job in ledger.jobs.values():
        result, status = results.get(job.job_id), ledger.status(job.job_id)
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
            result.first_start_s if result else None,
            result.end_s if result else None,
            status.phase.value,
            result.end_s - job.submit_s if result and result.phase is Phase.FINISHED else None,
            waited_s,
            status.starts,
            status.overflows,
            status.attained_at(last_s),
        )


def _intervals(policy: str, simulation: Simulation) -> pa.Table:
    import pyarrow as pa

    cluster = simulation.ledger.cluster
    ended = {result.job.job_id for result in simulation.results}
    timeline = make_timeline(simulation.log.entries, cluster, ended)
    intervals = timeline.intervals
    names = pa.array([cluster.name_of(device) for device in range(cluster.devices)], pa.string())
    return pa.table(
        {
            "policy": pa.array([policy] * len(intervals.job), pa.string()),
            "job_id": pa.array(timeline.job_ids, pa.string()).take(intervals.job),
            "device": names.take(intervals.device),
            "start_s": intervals.start_s,
            "end_s": intervals.end_s,
            "compute_milli": intervals.compute_milli,
            "paused": intervals.paused,
            "ended_by": pa.array(ENDS, pa.string()).take(intervals.ended_by),
        }
    )
