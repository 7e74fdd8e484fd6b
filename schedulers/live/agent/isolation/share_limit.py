"""Limit of a job to its share of its device, by the mechanisms of this machine."""

from __future__ import annotations

from presage.schedulers.live.agent.isolation.control_groups import Isolation
from presage.schedulers.live.agent.isolation.duty_cycle import DutyCycle
from presage.schedulers.live.agent.isolation.job_environment import cpu_count
from presage.schedulers.live.agent.tasks.task import BY_WEIGHT, FREE, FULL_DEVICE_MILLI, TaskSpec


class ShareLimit:
    """Share of a job: control groups for processors, MPS for a GPU, else a duty cycle.

    Parameters
    ----------
    percent : int or None
        Percentage of the GPU's threads that MPS allows the job, from its start to its end.

    Attributes
    ----------
    how : str
        "cgroup v1", "cgroup v1 weight" (or v2), "mps", "duty cycle", or "free" if nothing limits
        the job; "" until a share is set.
    duty : DutyCycle
        When the job runs.
    max_milli : int
        Largest share that MPS allows.
    """

    def __init__(self, spec: TaskSpec, isolation: Isolation, percent: int | None) -> None:
        self.how = ""
        self.duty = DutyCycle(FULL_DEVICE_MILLI, 0.0)
        self.max_milli = FULL_DEVICE_MILLI if percent is None else 10 * percent
        self._spec = spec
        self._isolation = isolation
        self._by_mps = percent is not None
        self._milli: int | None = None

    def set(self, compute_milli: int, now_s: float) -> bool:
        """Set the share; return whether it changed."""
        if compute_milli == self._milli:
            return False
        self._milli = compute_milli
        if self._spec.cuda is None:
            how = self._limit_cpus(compute_milli)
            duty_milli = FULL_DEVICE_MILLI if how else compute_milli
        else:
            how, duty_milli = "mps" if self._by_mps else "", self._gpu_duty_milli(compute_milli)
        if self._spec.can_grow and not self._spec.hard_limit and not how.endswith(BY_WEIGHT):
            how, duty_milli = FREE, FULL_DEVICE_MILLI  # never stopped, also without weights
        self.how = how or "duty cycle"
        self.duty = DutyCycle(duty_milli, now_s)
        return True

    def _limit_cpus(self, compute_milli: int) -> str:
        if not self._spec.hard_limit:
            return self._isolation.weigh(compute_milli * self._spec.weight)
        cpus = cpu_count(self._spec) * compute_milli / FULL_DEVICE_MILLI
        return self._isolation.limit_cpus(None if compute_milli == FULL_DEVICE_MILLI else cpus)

    def _gpu_duty_milli(self, compute_milli: int) -> int:
        # MPS percentages are whole numbers and cannot change: a duty cycle does the rest.
        if self._by_mps and compute_milli > self.max_milli - 10:
            return FULL_DEVICE_MILLI
        return compute_milli * FULL_DEVICE_MILLI // self.max_milli
