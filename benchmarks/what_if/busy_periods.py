"""Laws of later arrivals, compared where a start depends on nothing else.

A queue has devices that serve any work at once. It holds jobs up to a run time, and the time is
drawn from those at which it is not empty. Under a policy that prefers short jobs, a longer job
would start when the queue is empty next. That depends on later arrivals, which a law draws from the
past.

Run ``python -m benchmarks.what_if.busy_periods``. It takes about 20 minutes of one core. Its traces
are other ones than those of ``benchmarks.what_if``, so that laws are not chosen on those.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import NamedTuple
from unittest import mock

from benchmarks.forecast_worth.runs import DATASETS, KIND, TRACES, begun_elsewhere
from benchmarks.what_if.probes import FIRST, HORIZON_S, LAST, LOAD
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.job import Job
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.traces.formats import read_trace
from presage.schedulers.traces.selecting import select_user
from presage.schedulers.traces.trace import Trace
from presage.schedulers.what_if import arrivals
from presage.schedulers.what_if.arrivals import Arrivals
from presage.schedulers.what_if.snapshot import Past, PastJob, Snapshot

# Constants of ``arrivals`` that differ from the served ones.
LAWS: Mapping[str, Mapping[str, float]] = {
    "served": {},
    "without factors": {"BLOCK_SPREAD": 0.0, "CHANGE_SPREAD": 0.0},
    "without factors, blocks of a quarter": {
        "BLOCK_SPREAD": 0.0, "CHANGE_SPREAD": 0.0, "BLOCKS": 4
    },
    "factors of blocks only": {"CHANGE_SPREAD": 0.0},
    "factors of blocks only, 0.5": {"BLOCK_SPREAD": 0.5, "CHANGE_SPREAD": 0.0},
    "smaller factors of blocks, 0.3": {"BLOCK_SPREAD": 0.3},
    "larger factors of blocks, 0.6": {"BLOCK_SPREAD": 0.6},
}  # fmt: skip
SEEDS, QUESTIONS, FUTURES = 5, 20, 9
_LEAST_JOBS, _USERS, _MOST_GPUS = 300, 16, 56
_SHORTEST = (0.5, 0.8, 0.95, 1.0)  # fractions of jobs that the queue may hold
_LEAST_WAIT_S, _TRIES = 600.0, 3_000
_CLUSTER = Cluster((Node("n", 1, KIND, 1),))  # arrivals do not depend on it


# Shares of contained times by law and trace.
Shares = Mapping[str, Mapping[str, float]]


class Queue(NamedTuple):
    """Jobs by submission, their work in device-seconds, and the devices."""

    jobs: tuple[Job, ...]
    work: Mapping[str, float]
    devices: float


class Question(NamedTuple):
    """Work that waits at a time, and when the queue was empty next, from then."""

    now_s: float
    waiting: float
    true_s: float


def main() -> None:
    """Store the shares of contained ends of busy periods by law and trace."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(".cache/what_if/busy_periods.json"))
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {law: {} for law in LAWS}
    for name, trace in other_traces():
        questions = [list(_questions(trace, seed)) for seed in range(SEEDS)]
        for law, shares in found.items():
            shares[name] = _contained(questions, LAWS[law])
        print(name, {law: f"{shares[name]:.0%}" for law, shares in found.items()}, flush=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(found))


def other_traces() -> Iterator[tuple[str, Trace]]:
    """Yield the traces of other clusters and users than those of ``benchmarks.what_if``."""
    reported = {file for file, user, _ in TRACES.values() if not user}
    for path in sorted((DATASETS / "microsoft_itp").glob("*.csv.gz")):
        if f"microsoft_itp/{path.name}" not in reported:
            yield f"ITP {path.name[8:9]}", _from_zero(read_trace(path))
    left_out = (*(user for _, user, _ in TRACES.values() if user), "0e4a51")  # of vc_0e4a51
    trace = read_trace(DATASETS / "philly" / "philly.csv.gz")
    for user, count in Counter(job.user for job in trace.jobs).most_common(_USERS):
        if count >= _LEAST_JOBS and not user.startswith(left_out):
            yield f"Philly {user[:6]}", _from_zero(select_user(trace, user))


def _from_zero(trace: Trace) -> Trace:
    first_s = trace.jobs[0].submit_s
    jobs = tuple(replace(job, submit_s=job.submit_s - first_s) for job in trace.jobs)
    return replace(trace, jobs=jobs)


def row(shares: Mapping[str, float]) -> str:
    """Return the cells of a law: mean, range, and deviation from 80 % (root mean square)."""
    deviation = math.sqrt(fmean((share - 0.8) ** 2 for share in shares.values()))
    low, high = min(shares.values()), max(shares.values())
    mean = fmean(shares.values())
    return f"{100 * mean:.0f} | {100 * low:.0f} to {100 * high:.0f} | {100 * deviation:.1f}"


def _contained(
    questions: Sequence[Sequence[tuple[Queue, Question]]], constants: Mapping[str, float]
) -> float:
    """Return how often the range of some futures contains the end of a busy period."""
    inside: list[bool] = []
    with ExitStack() as stack:
        for name, value in constants.items():
            stack.enter_context(mock.patch.object(arrivals, name, value))
        for seed, of_seed in enumerate(questions):
            rng = Random(seed)
            for queue, question in of_seed:
                law = Arrivals(_snapshot(queue, question.now_s))
                drawn_s = [_drawn_s(law, queue, question, rng) for _ in range(FUTURES)]
                inside.append(min(drawn_s) - 1 <= question.true_s <= max(drawn_s) + 1)
    return fmean(inside)


def _questions(trace: Trace, seed: int) -> Iterator[tuple[Queue, Question]]:
    """Yield questions about times at which jobs wait."""
    jobs = [job for job in begun_elsewhere(trace, seed).jobs if job.gpus <= _MOST_GPUS]
    work = {job.job_id: trace.duration_s[job.job_id] * job.gpus for job in jobs}
    devices = sum(work.values()) / jobs[-1].submit_s / LOAD
    durations_s = sorted(trace.duration_s[job.job_id] for job in jobs)
    first_s, last_s = (jobs[int(part * len(jobs))].submit_s for part in (FIRST, LAST))
    rng = Random(f"{seed}")
    found = 0
    for _ in range(_TRIES):
        most_s = durations_s[int(rng.choice(_SHORTEST) * (len(jobs) - 1))]
        now_s = rng.uniform(first_s, last_s)
        kept = tuple(job for job in jobs if trace.duration_s[job.job_id] <= most_s)
        waiting = _waiting(((job.submit_s, work[job.job_id]) for job in kept), devices, now_s)
        if waiting < devices * _LEAST_WAIT_S:
            continue
        later = ((job.submit_s - now_s, work[job.job_id]) for job in kept if job.submit_s >= now_s)
        yield Queue(kept, work, devices), Question(now_s, waiting, _end_s(waiting, later, devices))
        found += 1
        if found == QUESTIONS:
            return


def _snapshot(queue: Queue, now_s: float) -> Snapshot:
    past = [PastJob(job, job.submit_s) for job in queue.jobs if job.submit_s < now_s]
    return Snapshot(now_s, _CLUSTER, {}, {}, {}, Progress(), past=Past(past))


def _drawn_s(law: Arrivals, queue: Queue, question: Question, rng: Random) -> float:
    later = (
        (job.submit_s - question.now_s, queue.work[original.job_id])
        for job, original in law.draw(rng, question.now_s + HORIZON_S)
    )
    return _end_s(question.waiting, later, queue.devices)


def _waiting(submitted: Iterable[tuple[float, float]], devices: float, now_s: float) -> float:
    """Return the work that waits at a time."""
    waiting = last_s = 0.0
    for at_s, work in submitted:
        if at_s >= now_s:
            break
        waiting, last_s = max(0.0, waiting - devices * (at_s - last_s)) + work, at_s
    return max(0.0, waiting - devices * (now_s - last_s))


def _end_s(waiting: float, later: Iterable[tuple[float, float]], devices: float) -> float:
    """Return when a queue is empty, given the work that waits and that arrives later."""
    end_s = waiting / devices
    for at_s, work in later:
        if at_s >= end_s:
            break
        end_s += work / devices
    return end_s


if __name__ == "__main__":
    main()
