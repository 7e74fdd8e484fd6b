"""What a job is given of a device of each kind, under whatever policy runs."""

from __future__ import annotations

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.policy import Policy
from presage.schedulers.policies.bin_packing import BinPacking
from presage.schedulers.policies.packing.policy import Packing
from presage.schedulers.policies.sharing.demand import Needs, needs_of
from presage.schedulers.policies.sharing.policy import Sharing


def wanted_of(
    policy: Policy, job: Job, overflows: int, cluster: Cluster, forecasts: Forecasts
) -> Needs:
    """What is foretold, what is requested, or whole devices: as the policy goes by.

    Parameters
    ----------
    overflows : int
        How often the job ran out of memory: then it has devices of its own.
    """
    kinds = cluster.columns.kinds
    if isinstance(policy, Sharing | Packing) and job.gpus == 1 and not overflows:
        return needs_of(job, kinds, forecasts, policy.overcommit)
    asked = [Allocation(0, FULL_DEVICE_MILLI, cluster.memory_of[kind]) for kind in kinds]
    if isinstance(policy, BinPacking) and not overflows:
        asked = [job.requested(whole) for whole in asked]
    return Needs(tuple(of.compute_milli for of in asked), tuple(of.memory_bytes for of in asked))
