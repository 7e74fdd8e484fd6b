"""Why a job is where it is: a sentence, and what was left on each node when somebody asks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

import numpy as np

from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.demand import wanted_of
from presage.schedulers.live.controller.replayed_state import AT_NODE, LiveJob, Stage
from presage.schedulers.live.controller.scheduling_view import SchedulingView
from presage.schedulers.live.controller.status_messages import status_of
from presage.schedulers.v1 import cluster_pb2 as pb

MOST_CANDIDATES = 32
MOST_NAMED = 4  # nodes that something is alike with
FITS, HERE = "fits", "it is here"


def sentence_of(core: Core, job: LiveJob, place: int, now_s: float) -> str:
    """In one sentence."""
    submitted = job.submitted
    name = "latency-sensitive" if submitted.job.latency_sensitive else "best-effort"
    if job.stage is Stage.WAITING:
        view = core.view(now_s)
        before = f"; it is no. {place} in the queue" if place else ""
        after = f" after {job.reason}" if job.reason and job.starts else ""
        if view is None:
            return f"it waits: {_none_up(core, now_s)}{before}"
        if job.job_id in view.impossible:
            return f"it waits for other nodes: {view.impossible[job.job_id]}"
        failure = view.forecasts.failure
        if failure and any(prediction.is_predicted for prediction in view.told_of(submitted.job)):
            failure = ""  # it was about others
        missing = f"; nothing is foretold now ({failure})" if failure else ""
        if any(row.verdict == FITS for row in candidates_of(core, job, now_s)):
            return f"it waits{after}: {_held_by(view, job, now_s)}{before}{missing}"
        gpus = submitted.job.gpus
        where = "device has" if gpus == 1 else f"node has {gpus} devices that have"
        return f"it waits{after}: no {where} left what it needs, as a {name} job{before}{missing}"
    if job.stage in AT_NODE:
        status = status_of(core, job, now_s)  # its agent may have chosen otherwise
        doing = {
            pb.PLACED: "it was given to",
            pb.RUNNING: "it runs on",
            pb.PAUSED: "it is paused on",
            pb.LEAVING: "it is leaving",
        }[status.phase]
        share = ", ".join(
            f"{one.compute_milli / 10:g} % of device {one.device}" for one in status.allocations
        )
        late = "; it will be late" if status.slo_violated else ""
        reason = f": {status.reason}" if status.reason else ""
        placement_reason = ""
        if job.placement_reason and job.stage is not Stage.LEAVING:
            placement_reason = f"; when it was placed {job.placement_reason}"
        silent = _silence(core, job, now_s)
        where = f"node {job.node} with {share}, attempt {job.starts}"
        return f"{doing} {where}{silent}{late}{reason}{placement_reason}"
    return f"it is {job.stage}{f': {job.reason}' if job.reason else ''}"


def _none_up(core: Core, now_s: float) -> str:
    """Why no node takes jobs."""
    alike: dict[str, list[str]] = {}
    for name in core.book.nodes:
        said = re.sub("^(it|its agent) (is |was )?", "", core.not_up(name, now_s))
        alike.setdefault(said, []).append(name)
    if not alike:
        return "no node has joined"
    named = [f"{_few(names)} {said}" for said, names in islice(alike.items(), MOST_NAMED)]
    others = sum(map(len, islice(alike.values(), MOST_NAMED, None)))
    return f"no node takes jobs: {'; '.join(named)}{f'; {others} others' if others else ''}"


def _few(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _silence(core: Core, job: LiveJob, now_s: float) -> str:
    """That a job's node is silent, or does not obey, and what follows from that, and when."""
    if core.is_heard(job.node, now_s):
        reason = core.not_up(job.node, now_s) if job.stage is Stage.PLACED else ""
        return f"; {reason}" if reason and not core.book.nodes[job.node].drained else ""
    silent_s = now_s - core.nodes[job.node].reported_s
    then = "counts as cancelled" if job.cancel else "waits again, to be placed anew"
    after = f"after {core.patience_s(job.node):.0f} s of that it {then}"
    return f"; of that node nothing was heard for {silent_s:.0f} s, {after}"


def _held_by(view: SchedulingView, job: LiveJob, now_s: float) -> str:
    """What keeps a job from a device that it would fit on."""
    status = view.ledger.status(job.job_id)
    if len(status.previous_devices) == 1:
        leaves_s = status.since_s + view.policy.needs.home_s - now_s
        if leaves_s > 0 and not job.submitted.job.latency_sensitive:
            return f"it is to go on on node {job.node} again, or elsewhere in {leaves_s:.0f} s"
    return "others go before it"


def candidates_of(core: Core, job: LiveJob, now_s: float) -> list[pb.Candidate]:
    """Devices of a job's kinds that are best for it now, and why each will do or not.

    Its own come first, then those that will do, then the emptiest; what it has counts as left.
    """
    view = core.view(now_s)
    if view is None:
        return []
    columns, capacity = view.cluster.columns, view.ledger.capacity
    held = view.allocations_of(job.job_id)
    if held:
        capacity = capacity.copy()
        capacity.give(held)  # what it has counts as left
    here = {allocation.device for allocation in held}
    wanted = view.job_of(job)
    needs = wanted_of(view.policy, wanted, job.overflows, view.cluster, view.forecasts)
    fits = needs.fit(capacity, columns)
    on_node = np.bincount(columns.node[fits], minlength=len(view.cluster.nodes))[columns.node]
    will_do = fits & (on_node >= wanted.gpus)
    elsewhere = ~np.isin(np.arange(len(fits)), list(here))
    best = np.lexsort((-capacity.compute_milli, ~will_do, elsewhere))
    for kinds in (job.submitted.job.kinds, wanted.kinds):  # as its user allows; and as will do
        if kinds:
            best = best[columns.has_kind(kinds)[best]]
    if job.small_bytes:  # it ran out of those
        best = best[columns.memory_bytes[best] > job.small_bytes]
    found = []
    for device in best.tolist()[:MOST_CANDIDATES]:
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
            runtime_s=view.forecasts.prediction(wanted, kind).runtime_s,
        )
        row.verdict = HERE if device in here else _verdict(row, int(on_node[device]), wanted.gpus)
        found.append(row)
    return found


def _verdict(row: pb.Candidate, on_node: int, gpus: int) -> str:
    """``on_node``: how many devices of its node fit."""
    if row.free_compute_milli < row.required_compute_milli:
        return "too little compute left"
    if row.free_memory_bytes < row.required_memory_bytes:
        return "too little memory left"
    return FITS if on_node >= gpus else f"{FITS}, but its node has {on_node} of {gpus}"


def place_of(view: SchedulingView | None, job_id: str) -> int:
    """Place in the queue, from 1, of a job; 0 if it does not wait."""
    if view is None or job_id not in view.ledger.jobs:
        return 0
    pending = (job.job_id for job in view.ledger.pending)
    return next((place for place, one in enumerate(pending, 1) if one == job_id), 0)


def queue_places(view: SchedulingView | None) -> dict[str, int]:
    """Places in the queue, from 1, of jobs that wait."""
    if view is None:
        return {}
    return {job.job_id: place for place, job in enumerate(view.ledger.pending, 1)}
