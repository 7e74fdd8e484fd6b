"""How runs are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How runs are made, the same for a whole campaign.

    Attributes
    ----------
    memory_limit_bytes : int or None
        Limit on every member's own data; None leaves it to the machine.
    max_foreign_load : float
        Above this share of the device, a window is measured again.
    max_unsteadiness : float
        Above this relative difference of a window's two halves, it is measured again.
    quiet_wait_s : float
        Longest wait for a quiet machine, in all, during one run.
    attempts : int
        Most windows of one run; the quietest is kept.
    timeout_s : float
        Longest time to set up and warm up, and longest time past a window's deadline.
    """

    threads: int
    seed: int = 0
    memory_limit_bytes: int | None = None
    max_foreign_load: float = 0.05
    max_unsteadiness: float = 0.15
    quiet_wait_s: float = 10.0
    quiet_sample_s: float = 0.25
    attempts: int = 3
    timeout_s: float = 120.0
