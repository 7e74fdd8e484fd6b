"""Options of measured runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of runs, the same for a complete campaign.

    Attributes
    ----------
    memory_limit_bytes : int or None
        Limit on every member's own data; None for no limit.
    max_foreign_load : float
        Share of the device used by other processes above which a window is repeated.
    max_unsteadiness : float
        Relative difference of a window's two halves above which it is repeated.
    quiet_wait_s : float
        Maximum total wait for a quiet machine during one run.
    attempts : int
        Maximum number of windows of one run; the quietest is kept.
    timeout_s : float
        Maximum time to set up and warm up, and maximum time after a window's deadline.
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
