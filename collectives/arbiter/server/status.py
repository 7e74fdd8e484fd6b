"""Status, explanations and time line of an arbiter, as messages for users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from presage.collectives.arbiter import agreement
from presage.collectives.arbiter.arbiter import Arbiter
from presage.collectives.arbiter.jobs import Job
from presage.collectives.arbiter.timeline.reason_texts import REASON_TEXTS
from presage.collectives.arbiter.timeline.recent import Row, newest_rows
from presage.collectives.core.view import JobView, Reason
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.errors import InvalidRequestError, UnknownJobError

_WAYS: dict[int, str] = {
    pb.INC: "on the switch",
    pb.RING: "by ring",
    pb.REFUSED: "by ring after the switch had refused it",
}


def status(arbiter: Arbiter) -> pb.StatusResponse:
    """Return switches and jobs."""
    views = agreement.views_in_force(arbiter.controller)
    jobs = sorted(arbiter.jobs.by_name.values(), key=lambda job: job.name)
    return pb.StatusResponse(
        agreement=arbiter.options.agreement,
        epoch=agreement.newest_epoch(arbiter.controller),
        stage=arbiter.controller.stage.name.lower(),
        switches=switch_statuses(arbiter),
        jobs=[_job_status(arbiter, job, views.get(job.name)) for job in jobs],
        notices=arbiter.notices,
    )


def switch_statuses(arbiter: Arbiter) -> list[pb.SwitchStatus]:
    """Return the switches of the domain."""
    states = arbiter.switches.states
    return [
        pb.SwitchStatus(
            name=switch.name,
            host=switch.host,
            port=switch.port,
            slots=switch.slots,
            is_reachable=not states[switch.name].problem,
            problem=states[switch.name].problem,
        )
        for switch in arbiter.switches.domain.switches
    ]


def explain(arbiter: Arbiter, name: str, number: int | None) -> pb.ExplainResponse:
    """Explain the decision of one AllReduce of a job; the last started one by default.

    Raises
    ------
    UnknownJobError
        No job has the name.
    InvalidRequestError
        The job has started no AllReduce, and no number is given.
    """
    job = arbiter.jobs.by_name.get(name)
    if job is None:
        raise UnknownJobError(f"no job {name!r} is registered; see `presage inc status`")
    number = job.started if number is None else number
    if number < 0:
        raise InvalidRequestError(f"job {name!r} has started no AllReduce; give a number")
    view = agreement.views_in_force(arbiter.controller).get(name, JobView(0))
    row = next((one for one in arbiter.recent.of_job(name) if one.number == number), None)
    reason = view.reason(number) if row is None else row.reason  # views of the past are gone
    details = [f"state: {job_state(arbiter, job)}"]
    if view.decisions:
        end = view.first_number + len(view.decisions) - 1
        details.append(
            f"decisions of epoch {view.epoch} are for numbers {view.first_number} to {end}"
        )
    if row is not None:
        time = f" in {1000 * row.duration_s:.3f} ms" if row.duration_s else ""  # not measured
        details.append(f"it ran {_WAYS[row.way]}{time}")
    details += _demand_details(arbiter, name, number)
    return pb.ExplainResponse(
        job=name,
        number=number,
        is_allowed=reason.is_allowed,
        reason=reason,
        summary=REASON_TEXTS[reason],
        details=details,
    )


def _demand_details(arbiter: Arbiter, name: str, number: int) -> list[str]:
    demands = arbiter.view.jobs if arbiter.view else ()
    demand = next((one for one in demands if one.job_id == name), None)
    if demand is None:
        return []
    call = demand.call(number)
    lines = [
        f"{call.size_bytes} bytes: {1000 * demand.inc_s(number):.3f} ms on the switch, "
        f"{1000 * demand.time_saved_s(number):.3f} ms less than by ring (predicted)"
    ]
    if problem := arbiter.problems.get(name):
        lines.append(f"its arrivals count as soon: {problem}")
    others = [one.job_id for one in demands if set(one.switches) & set(demand.switches)]
    others.remove(name)
    if others:
        lines.append(f"jobs at its switches: {', '.join(others)}")
    return lines


def job_state(arbiter: Arbiter, job: Job) -> str:
    """Return in words what the arbiter does for a job."""
    if job.is_member:
        problem = arbiter.problems.get(job.name)
        return f"arrivals count as soon: {problem}" if problem else "arbitrated"
    reasons = {
        "it is ending": any(rank.has_left for rank in job.ranks.values()),
        f"{job.connected} of {job.size} ranks are connected": job.connected < job.size,
        "it has one rank": job.size == 1,
        "no switch connects its nodes": not job.switches,
        "it has started no AllReduce yet": job.started < 0,
        "it has started no AllReduce for a while": job.started <= job.idle_at,
        "it joins with the next change of decisions": True,
    }
    return "ring: " + next(text for text, holds in reasons.items() if holds)


def _job_status(arbiter: Arbiter, job: Job, view: JobView | None) -> pb.JobStatus:
    view = view or JobView(0)
    demands = arbiter.view.jobs if arbiter.view else ()
    demand = next((one for one in demands if one.job_id == job.name), None)
    counts = pb.Counts()
    if job.ranks:
        counts.CopyFrom(job.ranks[min(job.ranks)].counts)
    counts.saved_s = job.saved_s
    reasons = Counter(view.decisions)
    return pb.JobStatus(
        job=job.name,
        ranks=job.size,
        connected=job.connected,
        switches=job.switches,
        epoch=view.epoch,
        first_number=view.first_number,
        window=len(view.decisions),
        started=job.started,
        period_s=demand.period_s if demand is not None and demand.is_predictable else 0.0,
        counts=counts,
        state=job_state(arbiter, job),
        reasons=[
            pb.ReasonCount(reason=code, text=REASON_TEXTS[Reason(code)], count=count)
            for code, count in sorted(reasons.items())
        ],
        mean_saved_s=job.saved_s / job.saved_calls if job.saved_calls else 0.0,
    )


def timeline(
    of_jobs: Iterable[Sequence[Row]],
    switches: Iterable[pb.SwitchStatus],
    last_s: float,
    now_s: float,
) -> pb.TimelineResponse:
    """Return recent AllReduces by their start; takes up to a second, so not in the event loop."""
    rows = [
        pb.TimelineRow(
            job=row.job,
            switches=row.switches,
            decision=pb.Decision(
                number=row.number,
                age_s=now_s - row.start_s,
                duration_s=row.duration_s,
                size_bytes=row.size_bytes,
                reason=row.reason,
                way=pb.Way.Name(row.way),
            ),
        )
        for row in newest_rows(of_jobs, last_s, now_s)
    ]
    return pb.TimelineResponse(rows=rows, switches=switches)
