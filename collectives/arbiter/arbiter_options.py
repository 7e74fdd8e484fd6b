"""Options of an arbiter, also of the arbiter in the phase simulator.

The command line has the same defaults; a test compares them.
"""

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
        Least time to wait for the adoption of a revocation.
    lock_s : float
        Time to wait for the locks and the fence of a round with two phases. It is shorter than the
        silence after which a locked rank asks its peers.
    resend_s : float
        Time between two repetitions of messages.
    plan_s : float
        Least time between two changes of decisions.
    max_jobs : int
        Greatest number of jobs.
    planner : PlannerOptions
        Sizes of windows, and the width of predicted arrivals.

    Raises
    ------
    ValueError
        ``plan_s`` is not above 0.
    """

    agreement: AgreementName = "in_band"
    lease_s: float = 5.0
    restart_s: float = 1.0
    idle_s: float = 30.0
    adopt_s: float = 1.0
    lock_s: float = 0.4
    resend_s: float = 0.5
    plan_s: float = 0.25
    max_jobs: int = 256
    planner: PlannerOptions = field(default_factory=PlannerOptions)

    def __post_init__(self) -> None:
        if not self.plan_s > 0:
            raise ValueError(f"plan_s={self.plan_s}, must be above 0")
