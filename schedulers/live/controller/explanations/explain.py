"""Explanation of the state of a job: a summary, and the candidate devices with free capacity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

import numpy as np

from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.demand import policy_demand
from presage.schedulers.live.controller.elastic.size_reasons import place
from presage.schedulers.live.controller.replayed_state import AT_NODE, LiveJob, Stage
from presage.schedulers.live.controller.scheduling_view import SchedulingView
from presage.schedulers.live.controller.status_messages import job_status
from presage.schedulers.v1 import cluster_pb2 as pb

MAX_CANDIDATES = 32
MAX_NAMED = 4  # nodes with the same reason
FITS, HERE = "fits", "it is here"


_PHASE_VERBS = {
    pb.PLACED: "it is assigned to",
    pb.RUNNING: "it runs on",
    pb.PAUSED: "it is paused on",
    pb.LEAVING: "it is leaving",
}


_ELASTIC_VERBS = {
    Stage.PLACED: "is assigned",
    Stage.RUNNING: "runs on",
    Stage.LEAVING: "is leaving",
}


def summarize_job(core: Core, job: LiveJob, position: int, now_s: float) -> str:
    """Return the state of a job and the reason for it, in one sentence."""
    if job.stage is Stage.WAITING:
        return _summarize_pending(core, job, position, now_s)
    if job.stage in AT_NODE:
        return _summarize_assigned(core, job, now_s)
    return f"it is {job.stage}{f': {job.reason}' if job.reason else ''}"


def _summarize_pending(core: Core, job: LiveJob, position: int, now_s: float) -> str:
    closed = core.state.gates.closed_reason(job)
    if closed:
        return f"it waits: {closed}"
    view = core.view(now_s)
    queue = f"; it is no. {position} in the queue" if position else ""
    if view is None:
        return f"it waits: {_none_up(core, now_s)}{queue}"
    if job.job_id in view.unschedulable:
        return f"it waits for other nodes: {view.unschedulable[job.job_id]}"
    if quota := view.quota_reason(job.job_id):
        return f"it waits: {quota}"
    after = f" after {job.reason}" if job.reason and job.starts else ""
    reason = _pending_reason(core, view, job, now_s)
    return f"it waits{after}: {reason}{queue}{_missing_forecasts(view, job)}"


def _pending_reason(core: Core, view: SchedulingView, job: LiveJob, now_s: float) -> str:
    if any(row.verdict == FITS for row in find_candidates(core, job, now_s)):
        return _blocking_reason(view, job, now_s)
    job_class = "latency-sensitive" if job.submitted.job.latency_sensitive else "best-effort"
    gpus = job.submitted.job.fewest_gpus if job.is_elastic else job.submitted.job.gpus
    if job.is_elastic and gpus > 1:
        too_few = f"fewer than {gpus} devices have enough free capacity for a {job_class} job"
        return f"{too_few}{_withdrawn_devices(view)}"
    where = "device has" if gpus == 1 else f"node has {gpus} devices with"
    return f"no {where} enough free capacity for a {job_class} job{_withdrawn_devices(view)}"


def _withdrawn_devices(view: SchedulingView) -> str:
    """Return which devices are withdrawn, and why; "" if none is."""
    named = [
        f"{view.node_of(device)}/{view.number_in_node(device)} ({reason})"
        for device, reason in view.withdrawn.items()
    ]
    return f"; withdrawn: {_join_names(named)}" if named else ""


def _missing_forecasts(view: SchedulingView, job: LiveJob) -> str:
    """Return why a job has no forecasts; "" if it has, or if the predictor has not failed."""
    failure = view.forecasts.failure
    if not failure or any(one.is_predicted for one in view.predictions(job.submitted.job)):
        return ""
    return f"; no forecasts are available ({failure})"


def _summarize_assigned(core: Core, job: LiveJob, now_s: float) -> str:
    status = job_status(core, job, now_s)  # the agent may have changed its allocations
    if job.is_elastic:
        return _summarize_elastic(core, job, status, now_s)
    share = ", ".join(
        f"{allocation.compute_milli / 10:g} % of device {allocation.device}"
        for allocation in status.allocations
    )
    violation = "; its SLO is violated" if status.slo_violated else ""
    reason = f": {status.reason}" if status.reason else ""
    placement_reason = ""
    if job.placement_reason and job.stage is not Stage.LEAVING:
        placement_reason = f"; when it was placed, {job.placement_reason}"
    problem = _connection_problem(core, job, now_s)
    where = f"node {job.node} with {share}, attempt {job.starts}"
    return f"{_PHASE_VERBS[status.phase]} {where}{problem}{violation}{reason}{placement_reason}"


def _summarize_elastic(core: Core, job: LiveJob, status: pb.JobStatus, now_s: float) -> str:
    on_node: dict[str, int] = {}
    for member in job.members:
        on_node[member.node] = on_node.get(member.node, 0) + 1
    where = ", ".join(f"{count} on node {node}" for node, count in on_node.items())
    spec = job.submitted.job
    size = f"{len(job.members)} of {spec.fewest_gpus} to {spec.most_gpus} devices"
    others = [one for one in status.members if one.state != "member"]
    states = "; ".join(f"worker {one.name} is {one.state}" for one in others[:MAX_NAMED])
    silent = [node for node in job.nodes if not core.is_connected(node, now_s)]
    parts = [
        f"it {_ELASTIC_VERBS[job.stage]} {size}: {where or 'none'}, attempt {job.starts}",
        f"{_join_names(silent)} {'do' if silent[1:] else 'does'} not report" if silent else "",
        states,
        job.reason,
        job.sizes[-1][2] if job.sizes and job.members else "",
        _measured_speeds(core, job),
        _leader_problem(core, job),
    ]
    return "; ".join(part for part in parts if part)


def _leader_problem(core: Core, job: LiveJob) -> str:
    report = core.elastic.report_of(job)
    return f"its leader: {report.problem}" if report is not None and report.problem else ""


def _measured_speeds(core: Core, job: LiveJob) -> str:
    paces_s = core.elastic.paces_s(job.job_id)
    if len(paces_s) < 2:
        return ""
    (base, base_s), *others = sorted(paces_s.items())
    speeds = [f"{base_s / pace_s:.2f} times on {place(*size)}" for size, pace_s in others]
    return f"measured speed, against {place(*base)}: {', '.join(speeds)}"


def _none_up(core: Core, now_s: float) -> str:
    """Return why no node gets jobs, with the nodes grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for name in core.state.nodes:
        reason = re.sub("^(it|its agent) (is |was )?", "", core.unavailable_reason(name, now_s))
        by_reason.setdefault(reason, []).append(name)
    if not by_reason:
        return "no node has joined"
    named = [f"{_join_names(names)} {why}" for why, names in islice(by_reason.items(), MAX_NAMED)]
    others = sum(map(len, islice(by_reason.values(), MAX_NAMED, None)))
    return f"no node gets jobs: {'; '.join(named)}{f'; {others} others' if others else ''}"


def _join_names(names: Sequence[str]) -> str:
    n_more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {n_more} more" if n_more > 0 else "")


def _connection_problem(core: Core, job: LiveJob, now_s: float) -> str:
    """Return that a job's node does not respond, and the consequence; "" if it responds."""
    if core.is_connected(job.node, now_s):
        reason = core.unavailable_reason(job.node, now_s) if job.stage is Stage.PLACED else ""
        return f"; {reason}" if reason and not core.state.nodes[job.node].drained else ""
    silent_s = now_s - core.nodes[job.node].reported_s
    consequence = "counts as cancelled" if job.cancel else "returns to the queue"
    after = f"after {core.loss_timeout_s(job.node):.0f} s it {consequence}"
    return f"; that node has not reported for {silent_s:.0f} s, {after}"


def _blocking_reason(view: SchedulingView, job: LiveJob, now_s: float) -> str:
    """Return why a job does not start on a device with enough free capacity."""
    status = view.ledger.status(job.job_id)
    if len(status.previous_devices) == 1:
        leaves_s = status.since_s + view.policy.needs.home_s - now_s
        if leaves_s > 0 and not job.submitted.job.latency_sensitive:
            return f"it prefers node {job.node}, where it ran, for another {leaves_s:.0f} s"
    return view.policy.explanation(job.job_id) or "jobs before it in the queue have priority"


def find_candidates(core: Core, job: LiveJob, now_s: float) -> list[pb.Candidate]:
    """Return the best devices for a job now, each with a verdict.

    The job's own devices are first, then those that fit, then those with the most free compute. The
    job's own allocations count as free.
    """
    view = core.view(now_s)
    if view is None:
        return []
    columns, capacity = view.cluster.columns, view.ledger.capacity
    held = view.allocations_of(job.job_id)
    if held:
        capacity = capacity.copy()
        capacity.give(held)  # its own allocations count as free
    own = {allocation.device for allocation in held}
    suited = view.suited_job(job)
    needs = policy_demand(view.policy, suited, job.overflows, view.cluster, view.forecasts)
    fits = needs.fit(capacity, columns)
    on_node = np.bincount(columns.node[fits], minlength=len(view.cluster.nodes))[columns.node]
    # An elastic job takes devices of any nodes.
    needed_on_node = 1 if job.is_elastic else suited.gpus
    is_suitable = fits & (on_node >= needed_on_node)
    is_elsewhere = ~np.isin(np.arange(len(fits)), list(own))
    best = np.lexsort((-capacity.compute_milli, ~is_suitable, is_elsewhere))
    best = best[view.available_devices()[best]]
    for kinds in (job.submitted.job.kinds, suited.kinds):  # that the user allows, that fit
        if kinds:
            best = best[columns.has_kind(kinds)[best]]
    if job.small_bytes:  # on smaller devices it ran out of memory
        best = best[columns.memory_bytes[best] > job.small_bytes]
    found = []
    for device in best.tolist()[:MAX_CANDIDATES]:
        number = columns.kind[device]
        kind = columns.kinds[number]
        row = pb.Candidate(
            node=view.node_of(device),
            device=view.number_in_node(device),
            kind=kind,
            free_compute_milli=int(capacity.compute_milli[device]),
            free_memory_bytes=int(capacity.memory_bytes[device]),
            required_compute_milli=needs.compute_milli[number],
            required_memory_bytes=needs.memory_bytes[number],
            runtime_s=view.forecasts.prediction(suited, kind).runtime_s,
        )
        row.verdict = HERE if device in own else _verdict(row, int(on_node[device]), needed_on_node)
        if device in view.withdrawn:
            row.verdict = f"withdrawn: {view.withdrawn[device]}"
        found.append(row)
    return found


def _verdict(row: pb.Candidate, on_node: int, gpus: int) -> str:
    """Return whether a device fits; ``on_node`` devices of its node do."""
    if row.free_compute_milli < row.required_compute_milli:
        return "too little free compute"
    if row.free_memory_bytes < row.required_memory_bytes:
        return "too little free memory"
    return FITS if on_node >= gpus else f"{FITS}, but its node has {on_node} of {gpus}"


def queue_position(view: SchedulingView | None, job_id: str) -> int:
    """Return the position of a job in the queue, from 1; 0 if it is not in the queue."""
    if view is None or job_id not in view.ledger.jobs:
        return 0
    pending = (job.job_id for job in view.ledger.pending)
    return next((position for position, name in enumerate(pending, 1) if name == job_id), 0)


def queue_positions(view: SchedulingView | None) -> dict[str, int]:
    """Return the positions in the queue, from 1, of all waiting jobs."""
    if view is None:
        return {}
    return {job.job_id: position for position, job in enumerate(view.ledger.pending, 1)}
