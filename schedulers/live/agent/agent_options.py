"""Settings of a node agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from presage.schedulers.live.agent.isolation.job_limits import JobLimits
from presage.schedulers.live.agent.slot import Slot


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Settings of a node agent.

    Attributes
    ----------
    state : Path
        State folder, on a local disk; each agent needs its own.
    checkpoints : Path
        Folder of the jobs' checkpoints, shared by all nodes that a job may move between.
    heartbeat_s : float
        Between reports if nothing has changed; less if leases are short.
    allow_root_jobs : bool
        Whether an agent that is root runs jobs whose account is root, or that have no account.
    limits : JobLimits
        Limits of each job on the node.
    pass_env : tuple of str
        Variables of the agent's environment that its jobs inherit.
    kernel_log : Path or None
        Kernel log to read errors of devices from; None for /dev/kmsg if a device has a PCI address.
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
    kernel_log: Path | None = None
