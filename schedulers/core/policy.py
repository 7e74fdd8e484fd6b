"""The contract of scheduling policies: what every policy declares, answers and decides.

Read it to write a policy. The simulator, the live cluster and the Kubernetes gate use only this
contract: neither the class of a policy nor its other attributes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from presage.schedulers.core.action import Action
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.queue import Key
from presage.schedulers.core.state import State

AllocationMode = Literal["exclusive", "requested", "predicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyNeeds:
    """What a policy needs from the system that runs it, and what it does to jobs.

    Attributes
    ----------
    allocation : str
        What a job gets of a device: all of it (``exclusive``), what its user requests
        (``requested``), or its predicted need (``predicted``).
    overcommit : float
        Factor by which predicted compute may exceed a device; memory is never overcommitted.
    most_members : int
        Largest number of jobs on one device, with predicted allocations.
    most_slowdown : float
        Largest predicted slowdown of co-located jobs, with predicted allocations.
    respects_memory : bool
        Whether jobs are kept off the kinds of devices whose memory is predicted to be too small.
    ageing_s : float
        Waiting time after which a best-effort job may start before latency-sensitive jobs.
    home_s : float
        Time for which an evicted best-effort job waits for the device that it was on.
    preempts : bool
        Whether it takes devices from running jobs (``Preempt``).
    resizes : bool
        Whether it changes, moves or pauses running jobs (``Resize``, ``Migrate``, ``Pause``,
        ``Resume``).
    scales : bool
        Whether it changes the number of devices of elastic jobs (``Resize``).
    plans_gangs : bool
        Whether it plans gangs over several nodes and holds devices for them (``Reserve``).
    hazards : bool
        Whether it reads the hazards of devices (``Forecasts.hazards``); they are 0 otherwise.
    orders_jobs : bool
        Whether it orders pending jobs itself, so that fair share cannot.
    fair_share_s : float
        Half-life of the past use of users, by which their pending jobs are ordered within a
        priority; 0 without fair share.
    """

    allocation: AllocationMode = "exclusive"
    overcommit: float = 1.0
    most_members: int = 1
    most_slowdown: float = 1.0
    respects_memory: bool = False
    ageing_s: float = math.inf
    home_s: float = 0.0
    preempts: bool = False
    resizes: bool = False
    scales: bool = False
    plans_gangs: bool = False
    hazards: bool = False
    orders_jobs: bool = False
    fair_share_s: float = 0.0


class Demand(NamedTuple):
    """What a policy allocates to a job on one device.

    Attributes
    ----------
    compute_milli : int
        Thousandths of the device's compute.
    memory_bytes : int
        Bytes of the device's memory.
    """

    compute_milli: int
    memory_bytes: int


class AgentSettings(NamedTuple):
    """How node agents of a live cluster rebalance the running jobs of their node.

    The attributes are those of ``presage.schedulers.policies.sharing.sharing_settings.Settings``.
    """

    step_milli: int
    least_milli: int
    check_s: float
    overcommit: float
    reserve: float


class Policy(ABC):
    """Scheduling policy. Pure: it reads no clock and does no I/O. It may cache forecasts.

    A subclass has to define :meth:`decide` only. It declares what it needs as the class attribute
    ``needs``, or sets ``self.needs`` where that depends on its parameters.

    Attributes
    ----------
    needs : PolicyNeeds
        By default exclusive devices for as long as a job runs.
    """

    needs: PolicyNeeds = PolicyNeeds()

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """Return the sort key of a pending job within its class; the smallest key is served first.

        Latency-sensitive jobs precede best-effort jobs whatever their keys are. The key of a job
        must not change while it waits. Jobs with equal keys keep the order of submission. By
        default jobs are ordered by priority, then by arrival.
        """
        del status, forecasts
        return (-job.priority, job.submit_s)

    @abstractmethod
    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> Sequence[Action]:
        """Return the actions to take now, in order; the ledger applies all of them or none.

        ``state.plan()`` builds actions that the ledger accepts.
        """

    def demand(
        self, job: Job, kind: str, cluster: Cluster, forecasts: Forecasts, *, overflows: int = 0
    ) -> Demand:
        """Return what a job is allocated on each of its devices of a kind.

        By default it follows ``needs.allocation``; gangs have exclusive devices unless requests
        are allocated.

        Parameters
        ----------
        overflows : int
            How often the job ran out of memory; after the first time it gets exclusive devices.
        """
        whole = Allocation(0, FULL_DEVICE_MILLI, cluster.memory_of[kind])
        needs = self.needs
        if needs.allocation == "exclusive" or overflows:
            return Demand(whole.compute_milli, whole.memory_bytes)
        if needs.allocation == "requested":
            requested = job.requested(whole)
            return Demand(requested.compute_milli, requested.memory_bytes)
        if job.gpus > 1:
            return Demand(whole.compute_milli, whole.memory_bytes)
        return predicted_demand(forecasts.prediction(job, kind), needs.overcommit)

    def checkpoint_interval_s(
        self, job: Job, allocations: Sequence[Allocation], state: State, forecasts: Forecasts
    ) -> float:
        """Return the time between checkpoints of a job that starts on these devices.

        By default that of the job. Only the simulator applies another one; it is not called for a
        job without periodic checkpoints.
        """
        del allocations, state, forecasts
        return job.checkpointing.interval_s

    def reservation_s(self, rollbacks: int) -> float:
        """Return how long a gang may hold devices after ``rollbacks`` expired reservations.

        Only a policy with ``needs.plans_gangs`` is asked.
        """
        del rollbacks
        return math.inf

    # Explanations ---------------------------------------------------------------------------

    @property
    def warning(self) -> str:
        """Reason for which the policy decides otherwise than its name says; "" without one."""
        return ""

    def explanation(self, job_id: str) -> str:
        """Return why a decision started a job where it runs, or left it waiting; "" if unknown."""
        del job_id
        return ""

    # Live clusters --------------------------------------------------------------------------

    @property
    def agent_settings(self) -> AgentSettings | None:
        """Settings by which node agents rebalance running jobs; None if they do not."""
        return None

    def controller_policy(self) -> Policy:
        """Return the part of the policy that the controller of a live cluster runs."""
        return self

    def agent_policy(self) -> Policy:
        """Return the part of the policy that the agent of a single node runs."""
        return self


def predicted_demand(prediction: RuntimePrediction, overcommit: float) -> Demand:
    """Return the predicted need of a job on one device; at least one thousandth of its compute."""
    share = math.ceil(prediction.compute_milli / overcommit)
    return Demand(min(FULL_DEVICE_MILLI, max(1, share)), prediction.memory_bytes)
