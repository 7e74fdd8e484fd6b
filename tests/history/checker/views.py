"""What a history says of each job and of the journal, gathered for the laws."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.history.checker.linearizable import Call
from tests.history.checker.models import (
    ABSENT,
    LEAVING,
    PAUSED,
    PLACED,
    RUNNING,
    WAITING,
)
from tests.history.record import Entry, Operation, operations


class LedgerLine(NamedTuple):
    """A line that a job's process wrote while it was alive."""

    at: int
    what: str
    job: str
    attempt: int
    pid: int
    number: int


class Read(NamedTuple):
    """What a list said: phase and attempt of jobs, as of an entry of the journal.

    Attributes
    ----------
    whole : bool
        Whether every known job was asked for, so that those not listed are absent.
    """

    operation: Operation
    jobs: Mapping[str, tuple[str, int]]
    drained: Mapping[str, bool]
    last_entry: int
    whole: bool


class Views:
    """Parts of a history, each computed once."""

    def __init__(self, history: Sequence[Entry]) -> None:
        self.meta: dict[str, Any] = next((e.value for e in history if e.kind == "meta"), {})
        self.operations = operations(history)
        self.reads = [read for one in self.operations if (read := _read_of(one)) is not None]
        self.ledger = [
            LedgerLine(e.at, e.what, *e.value) for e in history if e.kind == "ledger"
        ]  # fmt: skip
        self.events = [e for e in history if e.kind == "event"]
        self.final = [e for e in history if e.kind == "final"]
        self.faults = [e for e in history if e.kind == "fault"]
        self.submitted = {
            job
            for one in self.operations
            if one.what == "submit" and one.outcome != "fail"
            for job in one.asked
        }
        self.acknowledged = {
            job
            for one in self.operations
            if one.what == "submit" and one.outcome == "ok"
            for job in one.asked
        }

    @property
    def final_read(self) -> Read | None:
        """The last whole list, made once everything was healed."""
        found = [read for read in self.reads if read.whole and read.operation.process == "final"]
        return found[-1] if found else None

    def journal(self) -> dict[int, dict[str, Any]]:
        """Events by entry, as all watchers saw them; of one that differs the first."""
        found: dict[int, dict[str, Any]] = {}
        for event in self.events:
            found.setdefault(event.value["entry"], event.value)
        return dict(sorted(found.items()))

    def events_of_jobs(self) -> dict[str, list[dict[str, Any]]]:
        """Events of each job, by entry."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in self.journal().values():
            if event["job"]:
                found[event["job"]].append(event)
        return found

    def given_up(self) -> dict[tuple[str, int], int]:
        """When a watcher first received that an attempt returned, or that its job ended."""
        received: dict[int, int] = {}
        for event in self.events:
            entry = event.value["entry"]
            received[entry] = min(event.at, received.get(entry, event.at))
        attempts: Counter[str] = Counter()
        found: dict[tuple[str, int], int] = {}
        for entry, said in self.journal().items():
            job: str = said["job"]
            attempts[job] += said["what"] == "Placed"
            if said["what"] in ("Requeued", "Ended"):
                found.setdefault((job, attempts[job]), received[entry])
        return found

    def calls_of_jobs(self) -> dict[str, list[Call]]:
        """Operations on each job, for the search; those without an effect are left out."""
        names = {job for one in self.operations if one.what == "submit" for job in one.asked}
        found: dict[str, list[Call]] = {name: [] for name in names}
        for one in self.operations:
            if one.what == "submit" and one.outcome != "fail":
                known = set(one.result["known"]) if one.outcome == "ok" else set()
                for job in one.asked:
                    said = "known" if job in known else "new"
                    result = said if one.outcome == "ok" else "unknown"
                    found[job].append(Call(one.begin, one.end, ("submit", result)))
            elif one.what == "submit another" and one.outcome != "unknown":
                said = "new" if one.outcome == "ok" else "known"
                for job in one.asked:
                    found[job].append(Call(one.begin, one.end, ("submit", said)))
            elif one.what == "cancel" and one.asked in found:
                result = {"ok": "ok", "unknown": "unknown"}.get(one.outcome, str(one.result))
                if result in ("ok", "unknown", "absent"):
                    found[one.asked].append(Call(one.begin, one.end, ("cancel", result)))
        for read in self.reads:
            one = read.operation
            for job in names if read.whole else read.jobs:
                phase, attempt = read.jobs.get(job, (ABSENT, 0))
                found[job].append(Call(one.begin, one.end, ("read", phase, attempt)))
        return found

    def calls_of_nodes(self) -> dict[str, list[Call]]:
        """Operations on each node's flag of being drained."""
        found: dict[str, list[Call]] = defaultdict(list)
        for one in self.operations:
            if one.what == "drain" and one.outcome != "fail":
                node, value = one.asked
                kind = "set" if one.outcome == "ok" else "maybe"
                found[node].append(Call(one.begin, one.end, (kind, value)))
        for read in self.reads:
            for node, drained in read.drained.items():
                one = read.operation
                found[node].append(Call(one.begin, one.end, ("read", drained)))
        return found


def replayed(events: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    """Phase and attempt that a job's events add up to; raises ValueError at an impossible one."""
    phase, attempt = ABSENT, 0
    for event in events:
        before, what = phase, event["what"]
        if what == "Submitted" and before == ABSENT:
            phase = WAITING
        elif what == "Placed" and before == WAITING:
            phase, attempt = PLACED, attempt + 1
        elif what == "Started" and before == PLACED:
            phase = RUNNING
        elif what == "Stopping" and before in (PLACED, RUNNING, LEAVING):
            phase = LEAVING
        elif what == "Requeued" and before in (PLACED, RUNNING, LEAVING):
            phase = WAITING
        elif what == "Ended" and before in (WAITING, PLACED, RUNNING, LEAVING):
            phase = event["detail"].split()[0].rstrip(":").upper()
        else:
            raise ValueError(f"entry {event['entry']}: {what} while {before}")
    return phase, attempt


def _read_of(one: Operation) -> Read | None:
    """What a list or an explanation that was answered says; None of any other operation."""
    if one.what not in ("list", "read") or one.outcome == "unknown":
        return None
    if one.outcome == "fail":
        absent = one.what == "read" and one.result == "absent"
        return Read(one, {one.asked: (ABSENT, 0)}, {}, -1, whole=False) if absent else None
    jobs = {job: (phase, attempt) for job, phase, attempt in one.result["jobs"]}
    drained = dict(one.result.get("drained", {}))
    return Read(one, jobs, drained, one.result.get("entry", -1), whole=one.what == "list")


def as_running(phase: str) -> str:
    """A phase as the journal knows it, where a paused job runs."""
    return RUNNING if phase == PAUSED else phase
