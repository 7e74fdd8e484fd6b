"""Demand of a job on devices of each kind, under a policy."""

from __future__ import annotations

from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.policy import Policy
from presage.schedulers.policies.sharing.needs import NEVER, Needs


def policy_demand(
    policy: Policy, job: Job, overflows: int, cluster: Cluster, forecasts: Forecasts
) -> Needs:
    """Return the policy's demand for a job, by kind; kinds that the job excludes never fit.

    Parameters
    ----------
    overflows : int
        How often the job ran out of memory; after the first time it gets exclusive devices.
    """
    found = [
        policy.demand(job, kind, cluster, forecasts, overflows=overflows)
        if not job.kinds or kind in job.kinds
        else NEVER
        for kind in cluster.columns.kinds
    ]
    return Needs(
        tuple(one.compute_milli for one in found), tuple(one.memory_bytes for one in found)
    )
