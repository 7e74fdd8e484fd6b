"""Results of measured runs."""

from __future__ import annotations

from dataclasses import dataclass

from presage.pipelines.profiling.sampling.device_sample import DeviceSample

UNMEASURED = DeviceSample(compute_utilization=None, foreign_load=None)  # of a failed run


@dataclass(frozen=True, slots=True)
class MemberResult:
    """Result of one job of a run; fields are None if the run failed.

    ``failure`` is "", "out-of-memory", "crash" or "timeout" for this member itself: it is "" if
    another member made the run fail.
    """

    job: str
    steps: int = 0
    unsteadiness: float = 0.0  # relative difference of the window's two halves
    step_time_median_s: float | None = None
    step_time_p90_s: float | None = None
    compute_utilization: float | None = None
    memory_peak_bytes: int | None = None
    memory_allocated_peak_bytes: int | None = None
    memory_reserved_peak_bytes: int | None = None
    setup_s: float | None = None
    solo_step_time_s: float | None = None  # of a member of a co-location, measured just before
    failure: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Jobs that ran at the same time, and the disturbance by other processes."""

    members: tuple[MemberResult, ...]
    foreign_load: float | None = None
    sample: DeviceSample = UNMEASURED

    @property
    def unsteadiness(self) -> float:
        """Maximum unsteadiness of the members."""
        return max((member.unsteadiness for member in self.members), default=0.0)

    @property
    def failed(self) -> bool:
        """Whether any member failed, so that none was measured."""
        return any(member.failure for member in self.members)
