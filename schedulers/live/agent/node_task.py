"""State of a task in the agent of its node."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.v1 import cluster_pb2 as pb

Name = tuple[str, int]  # job id and attempt
Occupancy = list[tuple[Name, tuple[Allocation, ...], bool]]
RATE_WINDOW_S = 60.0  # the rate of progress is measured over this time, if nothing changes
MIN_RATE_WINDOW_S = 3.0  # a shorter window gives no rate
MIN_SAMPLES = 4  # fewer samples give no standard error


class Step(Enum):
    """Step of a task's life, from what the agent knows of its process."""

    WAITING = "waiting"  # for free capacity; there is no process
    ALLOCATED = "allocated"  # it has devices; its folder is created once they are free
    STARTED = "started"  # it has a folder: its process starts, runs, or is being ended
    ENDED = "ended"


class Observation(NamedTuple):
    """Measured state of a task's process.

    Attributes
    ----------
    ran_s : float
        Since its process was started.
    done, saved : float or None
        Fraction of the job's iterations, as the job reports it; None if it reports nothing.
    usage_milli : float or None
        Compute used since the previous observation, in milli-devices.
    exit : Exit or None
        How it ended.
    """

    ran_s: float
    done: float | None
    saved: float
    usage_milli: float | None
    memory_bytes: int
    peak_memory_bytes: int
    exit: pb.Exit | None = None


@dataclass(slots=True)
class NodeTask:
    """Task that is assigned to this node, runs on it, or has ended on it.

    Attributes
    ----------
    received_s : float
        When its order arrived.
    is_assigned : bool
        Whether the controller's last orders contain it.
    allocations : tuple of Allocation
        Its current or last allocations, by the numbers of the node's devices.
    end : str
        Why it is to end; "" while it is not.
    checkpoint : bool
        Whether it may save its state before it ends.
    slo_violated : bool
        Whether it is predicted to miss its SLO.
    remaining_s : float or None
        Predicted remaining run time at the last check; None if there was no check.
    why : str
        Last action on it, in a sentence.
    create_failed_s : float
        Since when its folder cannot be created; 0 if it could, or was not tried.
    launch_failed_s : float
        Since when its shim cannot be launched; 0 if it could, or was not tried.
    has_run : bool
        Whether its process was observed to run.
    is_partly_observed : bool
        Whether an earlier agent observed a part of it, which the fields below do not cover.
    has_constant_share : bool
        Whether its share never changed and it was never paused.
    busy_s : float
        Device-seconds that it kept its device busy.
    first_sample, last_sample : tuple of (float, float), or None
        First and last observation with progress: seconds since its start, fraction done.
    occupancy : list of (Name, tuple of Allocation, bool)
        The task and its co-located tasks: name, allocations, whether paused.
    previous_progress_per_s : float
        Its rate under the previous co-location, with the same share; 0 for none.
    colocated_s : dict of (str, int) to float
        Seconds that each other task ran on its devices.
    samples : deque of (float, float)
        As ``last_sample``: those of the last ``RATE_WINDOW_S``, or the last four, since the share
        or the co-location changed.
    """

    order: pb.TaskCommand
    submitted: SubmittedJob
    received_s: float
    is_assigned: bool = True
    step: Step = Step.WAITING
    allocations: tuple[Allocation, ...] = ()
    paused: bool = False
    end: str = ""
    checkpoint: bool = True
    slo_violated: bool = False
    remaining_s: float | None = None
    why: str = ""
    observation: Observation | None = None
    create_failed_s: float = 0.0
    launch_failed_s: float = 0.0
    has_run: bool = False
    is_partly_observed: bool = False
    has_constant_share: bool = True
    busy_s: float = 0.0
    first_sample: tuple[float, float] | None = None
    last_sample: tuple[float, float] | None = None
    occupancy: Occupancy = field(default_factory=list)
    previous_progress_per_s: float = 0.0
    colocated_s: dict[Name, float] = field(default_factory=dict)
    samples: deque[tuple[float, float]] = field(default_factory=deque)

    @property
    def name(self) -> Name:
        """Job id and attempt."""
        return self.submitted.job.job_id, self.order.attempt

    @property
    def progress_per_s(self) -> float:
        """Fraction of the job done per second, recently; 0 if it cannot be measured yet.

        Right after co-located tasks change it is the rate from before the change.
        """
        return self._measured_progress_per_s or self.previous_progress_per_s

    @property
    def max_progress_per_s(self) -> float:
        """Upper bound of the rate: two standard errors above ``progress_per_s``; inf if unknown.

        The rate is the sum of the differences between samples, each with a random error.
        """
        per_s = self._measured_progress_per_s
        if not per_s or len(self.samples) < MIN_SAMPLES:
            return math.inf
        errors = [
            next_done - done - per_s * (next_s - at_s)
            for (at_s, done), (next_s, next_done) in pairwise(self.samples)
        ]
        n = len(errors)
        deviation = math.sqrt(sum(error * error for error in errors) * n / (n - 1))
        return per_s + 2 * deviation / (self.samples[-1][0] - self.samples[0][0])

    @property
    def _measured_progress_per_s(self) -> float:
        if not self.samples:
            return 0.0
        (first_s, first), (last_s, last) = self.samples[0], self.samples[-1]
        span_s = last_s - first_s
        return (last - first) / span_s if span_s >= MIN_RATE_WINDOW_S else 0.0

    def reset_rate(self, occupancy: Occupancy) -> None:
        """Measure the rate again, because the share or the co-location has changed."""
        same_share = bool(self.occupancy) and self.occupancy[0] == occupancy[0]
        self.previous_progress_per_s = self.progress_per_s if same_share else 0.0
        self.occupancy = occupancy
        self.samples.clear()

    @property
    def runtime_s(self) -> float:
        """Seconds since its process was started; 0 before."""
        return 0.0 if self.observation is None else self.observation.ran_s
