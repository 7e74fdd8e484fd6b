"""Actions that change the shares of devices: first what frees capacity, then what takes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from presage.schedulers.core.action import Action, Resize, Start
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.policies.elastic.contender import Contender

Shares = dict[str, dict[int, Allocation]]


def share_actions(
    running: Iterable[Contender], placed: Iterable[tuple[Contender, bool]], shares: Shares
) -> list[Action]:
    """Return the actions that lead to the shares, in an order that the ledger accepts.

    Running jobs give up devices and parts of devices first. Then jobs start and grow, and at last
    shares are raised on devices that a job has left.

    Parameters
    ----------
    running : iterable of Contender
        Jobs that go on.
    placed : iterable of (Contender, bool)
        Jobs that start (True) or get other devices, in an order in which the devices are free.
    shares : dict of str to dict of int to Allocation
        What each job has afterwards, by its id and device.
    """
    now, actions = dict[str, dict[int, Allocation]](), list[Action]()
    for one in running:
        job_id = one.job.job_id
        before = {allocation.device: allocation for allocation in one.status.allocations}
        now[job_id], after = before, shares[job_id]
        reduced = {d: _minimum(before[d], after[d]) for d in before if d in after}
        if reduced != before and len(reduced) >= one.job.fewest_gpus:
            now[job_id] = reduced
            actions.append(Resize(job_id, _in_order(reduced)))
    for one, is_start in placed:
        job_id = one.job.job_id
        if is_start:
            now[job_id] = shares[job_id]
            actions.append(Start(job_id, _in_order(now[job_id])))
            continue
        held, after = now[job_id], shares[job_id]
        moved = {d: _minimum(held[d], after[d]) if d in held else after[d] for d in after}
        if moved != held:
            now[job_id] = moved
            actions.append(Resize(job_id, _in_order(moved)))
    raised = (job_id for job_id, held in now.items() if held != shares[job_id])
    return [*actions, *(Resize(job_id, _in_order(shares[job_id])) for job_id in raised)]


def _minimum(one: Allocation, other: Allocation) -> Allocation:
    return Allocation(
        one.device,
        min(one.compute_milli, other.compute_milli),
        min(one.memory_bytes, other.memory_bytes),
    )


def _in_order(shares: Mapping[int, Allocation]) -> tuple[Allocation, ...]:
    return tuple(shares[device] for device in sorted(shares))
