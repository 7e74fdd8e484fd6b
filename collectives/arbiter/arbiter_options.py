"""Options of an arbiter."""

from __future__ import annotations

from dataclasses import dataclass, field

from presage.collectives.arbiter.agreement import AgreementName
from presage.collectives.arbiter.planner import PlannerOptions


@dataclass(frozen=True, slots=True)
class ArbiterOptions:
    """Options of an arbiter.

    Attributes
    ----------
    agreement : str
        How ranks agree on views.
    lease_s : float
        Time after which a job leaves whose rank has no stream.
    restart_s : float
        The same for jobs of the journal, after the start of this arbiter.
    idle_s : float
        Time without a new AllReduce after which a job leaves until it goes on.
    adopt_s : float
        Least time to wait for the adoption of a revocation, and for locks with two phases.
    resend_s : float
        Time between two repetitions of messages.
    plan_s : float
        Least time between two changes of decisions.
    max_jobs : int
        Greatest number of jobs.
    planner : PlannerOptions
        Sizes of windows.
    """

    agreement: AgreementName = "in_band"
    lease_s: float = 5.0
    restart_s: float = 1.0
    idle_s: float = 30.0
    adopt_s: float = 1.0
    resend_s: float = 0.5
    plan_s: float = 0.25
    max_jobs: int = 256
    planner: PlannerOptions = field(default_factory=PlannerOptions)
