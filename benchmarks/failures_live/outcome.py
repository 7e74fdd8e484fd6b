"""Outcome of a live or simulated run: attempts of jobs, completion times, lost work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Any, NamedTuple

from benchmarks.failures_live.trace import STEP_S, Submission

Spans = Mapping[str, Sequence[tuple[float, float]]]  # outages of each node, in order


class Attempt(NamedTuple):
    """Attempt of a job on a node.

    Attributes
    ----------
    until_s : float
        When it ended, or its node failed; the start, if that had failed before.
    """

    job_id: str
    node: str
    from_s: float
    until_s: float
    is_lost: bool


class Outcome(NamedTuple):
    """Outcome of a run, in seconds since the first submission."""

    jct_s: Mapping[str, float]
    makespan_s: float
    attempts: Sequence[Attempt]
    outages: Spans

    @property
    def mean_jct_s(self) -> float:
        """Mean job completion time."""
        return mean(self.jct_s.values())

    @property
    def lost_s(self) -> float:
        """Device-seconds of work that failures undid."""
        return sum(one.until_s - one.from_s for one in self.attempts if one.is_lost)

    @property
    def restarts(self) -> int:
        """Number of starts after the first ones."""
        return len(self.attempts) - len(self.jct_s)

    def nodes_of(self, job_id: str) -> list[str]:
        """Return the nodes on which a job was started, in order."""
        return [one.node for one in self.attempts if one.job_id == job_id]


class Transition(NamedTuple):
    """Start or end of an attempt; ``node`` is "" at an end."""

    at_s: float
    job_id: str
    node: str
    is_lost: bool = False


def make_attempts(transitions: Iterable[Transition], outages: Spans) -> list[Attempt]:
    """Return the attempts by the time of their start."""
    begun: dict[str, Transition] = {}
    found = []
    for one in transitions:
        if one.node:
            begun[one.job_id] = one
            continue
        start = begun.pop(one.job_id)
        until_s = one.at_s
        if one.is_lost:
            failed = [span for span in outages.get(start.node, ()) if span[0] <= one.at_s]
            until_s = max(start.at_s, failed[-1][0]) if failed else one.at_s
        found.append(Attempt(one.job_id, start.node, start.at_s, until_s, one.is_lost))
    return sorted(found, key=lambda attempt: (attempt.from_s, attempt.job_id))


def live_outcome(live: Mapping[str, Any]) -> Outcome:
    """Return the outcome of :func:`benchmarks.failures_live.live.run_live`."""
    began_s = live["began_unix_s"]
    submitted_s, ended_s = dict[str, float](), dict[str, float]()
    transitions = []
    for unix_s, record in live["entries"]:
        job_id, at_s = record.get("job_id", ""), unix_s - began_s
        match record["type"]:
            case "Submitted":
                submitted_s[job_id] = record["time_unix_s"] - began_s
            case "Placed":
                transitions.append(Transition(at_s, job_id, record["node"]))
            case "Requeued":
                transitions.append(Transition(at_s, job_id, "", is_lost=True))
            case "Ended":
                assert record["stage"] == "finished", record
                ended_s[job_id] = record["time_unix_s"] - began_s
                transitions.append(Transition(ended_s[job_id], job_id, ""))
    outages = live_outages(live)
    return Outcome(
        {job_id: ended_s[job_id] - at_s for job_id, at_s in submitted_s.items()},
        max(ended_s.values()) - min(submitted_s.values()),
        make_attempts(transitions, outages),
        outages,
    )


def live_outages(live: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return when each node failed and its agent was started again; infinite if it was not."""
    began_s = live["began_unix_s"]
    found = {}
    for node, failed in live["failed"].items():
        starts = [*live["started"][node][1:], float("inf")]  # the first one is not after a failure
        found[node] = [
            (at_s - began_s, until_s - began_s)
            for at_s, until_s in zip(failed, starts, strict=False)
        ]
    return found


def submit_times_s(live: Mapping[str, Any]) -> dict[str, float]:
    """Return when each job was submitted."""
    return {
        record["job_id"]: record["time_unix_s"] - live["began_unix_s"]
        for _, record in live["entries"]
        if record["type"] == "Submitted"
    }


def overhead_s(runs: Iterable[Mapping[str, Any]], jobs: Sequence[Submission]) -> float:
    """Return the median time from the placement of a job to its end, without its steps."""
    steps_s = {job.job_id: job.iterations * STEP_S for job in jobs}
    return median(
        attempt.until_s - attempt.from_s - steps_s[attempt.job_id]
        for live in runs
        for attempt in live_outcome(live).attempts
        if not attempt.is_lost
    )


def rejoin_s(runs: Iterable[Mapping[str, Any]]) -> float:
    """Return the median time from the start of an agent until its node has joined; 0 if none."""
    delays_s = []
    for live in runs:
        joined = [
            (unix_s, record["node"])
            for unix_s, record in live["entries"]
            if record["type"] == "NodeJoined"
        ]
        for node, started in live["started"].items():
            ends = [*live["failed"][node][1:], float("inf")]
            for start_s, fails_s in zip(started[1:], ends, strict=False):
                after = [at for at, name in joined if name == node and start_s < at < fails_s]
                delays_s += [after[0] - start_s] if after else []
    return median(delays_s) if delays_s else 0.0


def detection_delays_s(runs: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the time from each failure of a node until the controller recorded its loss."""
    found = []
    for live in runs:
        losses = _losses_unix_s(live)
        for node, failed in live["failed"].items():
            for at_s, until_s in pairwise([*failed, float("inf")]):
                after = [one for one in losses.get(node, ()) if at_s <= one < until_s]
                found += [after[0] - at_s] if after else []
    return found


def false_losses(runs: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of losses of nodes that had not failed, or had joined again."""
    runs = list(runs)
    recorded = sum(len(one) for live in runs for one in _losses_unix_s(live).values())
    return recorded - len(detection_delays_s(runs))


def _losses_unix_s(live: Mapping[str, Any]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for unix_s, record in live["entries"]:
        if record["type"] == "NodeLost":
            found.setdefault(record["node"], []).append(unix_s)
    return found
