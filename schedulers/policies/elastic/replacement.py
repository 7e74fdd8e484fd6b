"""Devices of a job of a fixed size, taken from running jobs of a lower rank."""

from __future__ import annotations

from collections.abc import Iterable

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job
from presage.schedulers.policies.elastic.contender import Contender
from presage.schedulers.policies.elastic.occupants import Occupants


def place_instead_of(
    job: Job, others: Iterable[Contender], occupants: Occupants, cluster: Cluster
) -> tuple[tuple[Allocation, ...], list[Contender]]:
    """Return the devices of a job, and the jobs that have to leave them; () if there are too few.

    Parameters
    ----------
    others : iterable of Contender
        Jobs that may have to leave, in this order.
    """
    freed, left = occupants.idle.copy(), list[Contender]()
    for one in others:
        left.append(one)
        freed.give(occupants.idle_without({each.job.job_id for each in left}, one.own))
        allocations = place_consolidated(job, cluster, freed)
        if allocations is not None:
            taken = {allocation.device for allocation in allocations}
            return allocations, [each for each in left if not taken.isdisjoint(each.own)]
    return (), []
