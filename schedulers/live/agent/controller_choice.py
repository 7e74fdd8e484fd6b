"""Policy of an agent that rebalances nothing: its tasks get what the controller chose for them."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from presage.schedulers.core.action import Action, Resize, Resume, Start
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.state import State
from presage.schedulers.live.agent.node_task import NodeTask, Step
from presage.schedulers.live.protocol.wire import read_allocations


class ControllerChoice(Policy):
    """Start each task on the devices that the controller chose, as they become free.

    Shares that an earlier policy changed, and paused tasks, return to the controller's choice, but
    on their current devices: a process cannot move. A share is raised once the tasks that leave its
    devices have ended.

    Parameters
    ----------
    tasks : collection of NodeTask
        The tasks of the node; read at each decision.
    """

    def __init__(self, tasks: Collection[NodeTask]) -> None:
        self._tasks = tasks

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Action]:
        """Return reductions of shares first, then resumptions, raises and starts."""
        reduced, resumed, raised = list[Action](), list[Action](), list[Action]()
        started: list[Action] = []
        ending = {
            allocation.device
            for task in self._tasks
            if task.end and task.step is Step.STARTED
            for allocation in task.allocations
        }
        for task in self._tasks:
            job_id = task.name[0]
            if task.end:
                continue
            chosen = read_allocations(task.order.allocations)
            if task.step is Step.WAITING:
                started.append(Start(job_id, chosen))
            elif task.step in (Step.ALLOCATED, Step.STARTED):
                if task.paused:
                    resumed.append(Resume(job_id))
                    continue
                chosen = _on_current_devices(chosen, task.allocations)
                least = tuple(map(_minimum, chosen, task.allocations))
                if least != task.allocations:
                    reduced.append(Resize(job_id, least))
                if chosen != least and ending.isdisjoint(one.device for one in chosen):
                    raised.append(Resize(job_id, chosen))
        return [*reduced, *resumed, *raised, *started]


def _minimum(one: Allocation, other: Allocation) -> Allocation:
    return Allocation(
        one.device,
        min(one.compute_milli, other.compute_milli),
        min(one.memory_bytes, other.memory_bytes),
    )


def _on_current_devices(
    chosen: tuple[Allocation, ...], current: tuple[Allocation, ...]
) -> tuple[Allocation, ...]:
    """Return the chosen allocations on a task's current devices.

    If the numbers of devices differ, return the current allocations.
    """
    if len(chosen) != len(current):
        return current
    return tuple(new._replace(device=old.device) for new, old in zip(chosen, current, strict=True))
