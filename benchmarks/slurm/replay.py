"""One replay: submits all jobs to a cluster of its own and returns their waiting times."""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.schedulers.slurm.site import Site, slurm_site

from benchmarks.slurm.questions import PredictedStart, Questions
from benchmarks.slurm.workload import USERS, ReplayJob, minutes_of
from presage.schedulers.slurm.bridge.submission import Changes, parse_lines
from presage.schedulers.slurm.job_note import JobNote
from presage.schedulers.slurm.watch.slurm_job import Slurm
from presage.schedulers.slurm.watch.watcher import Watcher

NODES, GPUS = 4, 8  # nodes, and GPUs of each
LEAD_MINUTES = 4
_POLL_S = 0.3
_TIMES = ("EligibleTime", "StartTime", "EndTime")
_FIELD = re.compile(rf"(JobId|JobState|{'|'.join(_TIMES)})=")
# OverTimeLimit: the lag of a busy machine, times the speed of the clock, must not end a job whose
# limit is its run time. Slurm plans without it.
_SETTINGS = ("MinJobAge=1000000", "MaxJobCount=20000", "DefMemPerCPU=100", "OverTimeLimit=30")
# Priority of jobs with a nice value: twice the predicted run time weighs as an hour of waiting.
_AGEING = (
    "PriorityType=priority/multifactor", "PriorityWeightAge=168000", "PriorityMaxAge=7-0",
    "PriorityCalcPeriod=1",
)  # fmt: skip
_NICE_PER_DOUBLING = 1000
SHORT_FIRST = "predicted, short first"
LIMITS = ("as requested", "predicted", SHORT_FIRST, "true")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What happened in a replay, in seconds of the cluster's clock.

    Attributes
    ----------
    waits_s, ran_s : list of float
        Waiting time and run time of each job. Slurm takes time to start and end jobs, and the
        speed of the clock multiplies it: they run longer than they sleep.
    starts : list of PredictedStart
        Predicted starts.
    """

    waits_s: list[float]
    ran_s: list[float]
    starts: list[PredictedStart]


def replay(
    jobs: Sequence[ReplayJob], user: str, limits: str, *, speed: float, backfill: bool = True
) -> Replayed:
    """Run all jobs in a cluster of their own.

    Parameters
    ----------
    user : str
        Of ``USERS``.
    limits : str
        Of ``LIMITS``: those of the user, the bridge's by a forecast, these with a nice value by
        the predicted run time and priorities that grow with the wait, or the true run time.
    speed : float
        How many times faster than real the cluster's clock runs.
    """
    folder = Path(tempfile.mkdtemp(prefix="presage-slurm-"))
    settings: tuple[str, ...] = (
        _SETTINGS if backfill else (*_SETTINGS, "SchedulerType=sched/builtin")
    )
    if limits == SHORT_FIRST:
        settings += _AGEING
    try:
        with (
            slurm_site(folder, speed=speed, settings=settings, nodes=NODES, gpus=GPUS) as site,
            mock.patch.dict("os.environ", site.cluster.environment),
            _Watching(site),
        ):
            return _replayed(site, jobs, user, limits)
    finally:
        shutil.rmtree(folder)


class _Watching:
    """A watcher in a thread."""

    def __init__(self, site: Site) -> None:
        watcher = Watcher(Slurm(), site.state, None, cluster="replay", lead_minutes=LEAD_MINUTES)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=watcher.run, args=(self._stopping, _POLL_S))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._stopping.set()
        self._thread.join()


def _replayed(site: Site, jobs: Sequence[ReplayJob], user: str, limits: str) -> Replayed:
    by_index = {str(job.index): job for job in jobs}

    def respond(request: bytes) -> bytes:
        values = parse_lines(request)
        own = int(values["own_limit"])
        job = by_index[values["features"]]
        minutes = max(LEAD_MINUTES, minutes_of(job.quantile_s))
        note = JobNote(
            own_minutes=own,
            set_minutes=minutes if minutes < own else None,
            predicted_s=job.quantile_s,
            median_s=job.median_s,
        )
        nice = round(_NICE_PER_DOUBLING * math.log2(max(1.0, job.median_s / 60)))
        return Changes(
            time_limit_minutes=note.set_minutes,
            nice=nice if limits == SHORT_FIRST else None,
            note=note.text(),
        ).lines()

    begin_s = int(site.cluster.run("date", "+%s")) + 60 + len(jobs)
    with site.answering(respond):
        for job in jobs:
            own = minutes_of(job.runtime_s) + 1 if limits == "true" else USERS[user](job)
            when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(begin_s + job.submit_s))
            options = [f"--time={own}", f"--begin={when}", f"--job-name=j{job.index}"]
            options += [f"--gres=gpu:a100:{job.gpus}"]
            env = (
                {"SLURM_PRESAGE_JOB": str(job.index)}
                if limits in ("predicted", SHORT_FIRST)
                else {}
            )
            site.cluster.submit(f"sleep {job.runtime_s:.0f}", *options, env=env)
    questions = Questions(site, begin_s)
    times_s = _times_s(site, len(jobs), questions.ask)
    return Replayed(
        [one["StartTime"] - one["EligibleTime"] for one in times_s.values()],
        [one["EndTime"] - one["StartTime"] for one in times_s.values()],
        list(questions.answered({name: one["StartTime"] for name, one in times_s.items()})),
    )


def _times_s(site: Site, count: int, each_pass: Callable[[], None]) -> dict[str, dict[str, float]]:
    """Return the eligible time, start and end of each job once all have completed."""
    while True:
        time.sleep(5)
        each_pass()
        times_s: dict[str, dict[str, float]] = {}
        ends = 0
        for line in site.cluster.run("scontrol", "--oneliner", "show", "job").splitlines():
            found = dict(word.split("=", 1) for word in line.split() if _FIELD.match(word))
            ends += found["JobState"] in ("COMPLETED", "TIMEOUT", "FAILED")
            if found["JobState"] in ("TIMEOUT", "FAILED"):
                raise RuntimeError(f"a job of the replay did not complete: {line[:300]}")
            times_s[found["JobId"]] = {name: _unix_s(found[name]) for name in _TIMES}
        if ends == count:
            return dict(sorted(times_s.items(), key=lambda item: int(item[0])))


def _unix_s(text: str) -> float:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0.0
