"""Reasons for the number of devices of an elastic job, from the forecasts of its speed."""

from __future__ import annotations

from collections.abc import Sequence

from presage.schedulers.core.action import Action, Resize, Start
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.ledger import Ledger

MAX_NAMED = 3  # jobs that get devices


def size_reason(
    action: Start | Resize,
    before: Sequence[Allocation],
    actions: Sequence[Action],
    ledger: Ledger,
    forecasts: Forecasts,
) -> str:
    """Return why an elastic job gets its devices, in a few words.

    Parameters
    ----------
    before : sequence of Allocation
        What it had.
    actions : sequence of Action
        The whole decision.
    ledger : Ledger
        Jobs and devices after the decision.
    """
    job, cluster = ledger.jobs[action.job_id], ledger.cluster
    kind = cluster.kind_of(action.allocations[0].device)
    gpus, nodes = len(action.allocations), _nodes(action.allocations, ledger)

    def speed(gpus: int, nodes: int) -> float:
        return forecasts.speedup(job, kind, gpus, nodes).median

    now = speed(gpus, nodes)
    base_gpus, base_nodes = (len(before), _nodes(before, ledger)) if before else (job.gpus, 1)
    text = _change(action, before, actions, ledger)
    if (gpus, nodes) != (base_gpus, base_nodes):
        ratio = now / speed(base_gpus, base_nodes)
        text += f", predicted {ratio:.2f} times as fast as on {place(base_gpus, base_nodes)}"
    return f"{text}; {_why_not_more(job.most_gpus, gpus, ledger, speed(gpus + 1, nodes) / now)}"


def place(gpus: int, nodes: int) -> str:
    """Return a number of devices and nodes as text, such as "2 devices of 1 node"."""
    of_nodes = f"of {nodes} {'node' if nodes == 1 else 'nodes'}"
    return f"{gpus} {'device' if gpus == 1 else 'devices'} {of_nodes}"


def _change(
    action: Start | Resize, before: Sequence[Allocation], actions: Sequence[Action], ledger: Ledger
) -> str:
    gpus = len(action.allocations)
    if not before:
        most = ledger.jobs[action.job_id].most_gpus
        return f"it starts on {gpus} of at most {most} devices{_shared_with(action, ledger)}"
    if gpus > len(before):
        return f"it grows from {len(before)} to {gpus}, since devices are idle"
    if {one.device for one in before} == {one.device for one in action.allocations}:
        return _new_shares(before, action.allocations) + _shared_with(action, ledger)
    if gpus == len(before):
        return "it moves to other devices"
    freed = {one.device for one in before} - {one.device for one in action.allocations}
    names = [
        other.job_id
        for other in actions
        if isinstance(other, Start | Resize)
        and other.job_id != action.job_id
        and freed & {one.device for one in other.allocations}
    ]
    receivers = f" for {', '.join(names[:MAX_NAMED])}" if names else ""
    return f"it shrinks from {len(before)} to {gpus}{receivers}"


def _new_shares(before: Sequence[Allocation], after: Sequence[Allocation]) -> str:
    compute, others = (sum(one.compute_milli for one in row) for row in (after, before))
    if compute == others:
        return "its shares of devices change"
    return f"its shares of devices are {'raised' if compute > others else 'reduced'}"


def _shared_with(action: Start | Resize, ledger: Ledger) -> str:
    """Return with which jobs a job shares its devices; "" if with none."""
    others = {other for one in action.allocations for other in ledger.jobs_on(one.device)}
    names = sorted(others - {action.job_id})[:MAX_NAMED]
    return f", which it shares with {', '.join(names)}" if names else ""


def _why_not_more(most: int, gpus: int, ledger: Ledger, gain: float) -> str:
    if gpus >= most:
        return "that is its maximum"
    if not ledger.idle.count:
        return "no other device is idle"
    return f"one more device would make it {gain:.2f} times as fast by the forecast"


def _nodes(allocations: Sequence[Allocation], ledger: Ledger) -> int:
    return len({ledger.cluster.node_of[one.device] for one in allocations})
