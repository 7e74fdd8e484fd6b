"""Options of a node's agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from presage.schedulers.live.agent.isolation.job_limits import JobLimits
from presage.schedulers.live.agent.slot import Slot


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Options of an agent.

    Attributes
    ----------
    state : Path
        Folder of the agent alone, on a local disk.
    checkpoints : Path
        Folder of jobs' checkpoints, the same on all nodes that a job may move between.
    heartbeat_s : float
        Longest time between two reports without a change; shorter if leases are short.
    allow_root_jobs : bool
        Whether an agent of root runs jobs as root: those whose account is root or missing.
    limits : JobLimits
        Limits of each job on the node.
    pass_env : tuple of str
        Variables of the agent's environment that its jobs inherit.
    """

    node: str
    slots: tuple[Slot, ...]
    state: Path
    checkpoints: Path
    heartbeat_s: float = 5.0
    hard_shares: bool = False
    allow_root_jobs: bool = False
    limits: JobLimits = field(default_factory=JobLimits)
    pass_env: tuple[str, ...] = ()
