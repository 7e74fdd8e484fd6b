"""Rules of sharing a switch that need no prediction; the arbitrated rule is in ``arbitrated``."""

from __future__ import annotations

import math

from presage.collectives.simulation.phased_job import PhasedJob, Way


class Rule:
    """Rule by which AllReduces use the switches.

    Attributes
    ----------
    interval_s : float
        Time between two calls of ``plan``.
    fixed : Way or None
        Way of an AllReduce that does not use a switch; None is the faster of ring and tree.
    has_limits : bool
        Whether switches have a limited number of slots.
    """

    interval_s: float = math.inf
    fixed: Way | None = None
    has_limits: bool = True

    def is_allowed(self, job: PhasedJob, number: int) -> bool:
        """Return whether an AllReduce that starts now is sent to the switch."""
        raise NotImplementedError

    def observe(self, job: PhasedJob, number: int, start_s: float, size_bytes: int) -> None:
        """Record the start of an AllReduce."""

    def plan(self, now_s: float) -> None:
        """Decide again from what was observed."""


class Never(Rule):
    """Ring only, tree only, or the faster of both: no switch."""

    def __init__(self, fixed: Way | None = None) -> None:
        self.fixed = fixed

    def is_allowed(self, job: PhasedJob, number: int) -> bool:
        """Return False."""
        return False


class FirstForLife(Rule):
    """The first jobs hold the slots of their switches for life, as communicators with SHARP do."""

    def __init__(self, slots: dict[str, int]) -> None:
        self._left = dict(slots)
        self._holds: dict[str, bool] = {}

    def is_allowed(self, job: PhasedJob, number: int) -> bool:
        """Return whether the job holds a slot; its first AllReduce takes one if any is left."""
        if job.job_id not in self._holds:
            can_hold = all(self._left[name] > 0 for name in job.switches)
            self._holds[job.job_id] = can_hold
            for name in job.switches if can_hold else ():
                self._left[name] -= 1
        return self._holds[job.job_id]


class FirstCome(Rule):
    """Every AllReduce is sent to the switch, which refuses it if no slot is free.

    A refusal costs a round trip and a vote of the ranks (decision 46).
    """

    def is_allowed(self, job: PhasedJob, number: int) -> bool:
        """Return True."""
        return True


class Always(Rule):
    """Every AllReduce uses the switch, which has a slot for each job: a bound for each job."""

    has_limits = False

    def is_allowed(self, job: PhasedJob, number: int) -> bool:
        """Return True."""
        return True
