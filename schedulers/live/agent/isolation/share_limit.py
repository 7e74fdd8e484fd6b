"""A job's share of its device, by what this machine has for it."""

from __future__ import annotations

from presage.schedulers.live.agent.isolation.control_groups import Isolation
from presage.schedulers.live.agent.isolation.duty_cycle import DutyCycle
from presage.schedulers.live.agent.isolation.job_environment import cpu_count
from presage.schedulers.live.agent.tasks.task import BY_WEIGHT, FREE, FULL_DEVICE_MILLI, TaskSpec


class ShareLimit:
    """Processors by the task's group, a GPU by MPS; by a part of the time where there is neither.

    Parameters
    ----------
    percent : int or None
        Of the GPU's threads that MPS gives the job, from its start to its end.

    Attributes
    ----------
    how : str
        "cgroup v1", "cgroup v1 weight" (or v2), "mps", "duty cycle", or "free" of one that nothing
        holds; "" until a share is set.
    duty : DutyCycle
        When the job is to run at all.
    most_milli : int
        The largest share that it can be given.
    """

    def __init__(self, spec: TaskSpec, isolation: Isolation, percent: int | None) -> None:
        self.how = ""
        self.duty = DutyCycle(FULL_DEVICE_MILLI, 0.0)
        self.most_milli = FULL_DEVICE_MILLI if percent is None else 10 * percent
        self._spec = spec
        self._isolation = isolation
        self._by_mps = percent is not None
        self._milli: int | None = None

    def set(self, compute_milli: int, now_s: float) -> bool:
        """Whether that is another share than before."""
        if compute_milli == self._milli:
            return False
        self._milli = compute_milli
        if self._spec.cuda is None:
            how = self._of_cpus(compute_milli)
            of_time = FULL_DEVICE_MILLI if how else compute_milli
        else:
            how, of_time = "mps" if self._by_mps else "", self._of_gpu_time(compute_milli)
        if self._spec.grows and not self._spec.hard and not how.endswith(BY_WEIGHT):
            how, of_time = (
                FREE,
                FULL_DEVICE_MILLI,
            )  # it waits for nobody, also where nothing can be weighed
        self.how = how or "duty cycle"
        self.duty = DutyCycle(of_time, now_s)
        return True

    def _of_cpus(self, compute_milli: int) -> str:
        if not self._spec.hard:
            return self._isolation.weigh(compute_milli * self._spec.weight)
        cpus = cpu_count(self._spec) * compute_milli / FULL_DEVICE_MILLI
        return self._isolation.limit_cpus(None if compute_milli == FULL_DEVICE_MILLI else cpus)

    def _of_gpu_time(self, compute_milli: int) -> int:
        # MPS has whole hundredths, and never changes them: what is below is a matter of time.
        if self._by_mps and compute_milli > self.most_milli - 10:
            return FULL_DEVICE_MILLI
        return compute_milli * FULL_DEVICE_MILLI // self.most_milli
