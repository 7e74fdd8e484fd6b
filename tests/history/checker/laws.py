"""Laws of histories, each with the bound that is part of its statement.

Every law is a function from a history's views to sentences, one for each violation. A law that
needs a bound in time takes it from the lease, never from the speed of the machine: SLACK_S is the
time that the controller itself allows a node, beyond lease and grace, to end its jobs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tests.history.checker.linearizable import check_linearizable
from tests.history.checker.models import (
    ABSENT,
    CANCELLED,
    FINISHED,
    TERMINAL,
    drained_step,
    job_step,
)
from tests.history.checker.views import LedgerLine, Read, Views, as_running, replayed
from tests.history.record import Entry

SLACK_S = 10.0
_MOST_SAID = 20  # violations of one law that are listed


class Violation(NamedTuple):
    """A law that a history breaks, and how."""

    law: str
    how: str


def acknowledged_is_never_lost(views: Views) -> Iterator[str]:
    """Each acknowledged job is known in the end, in one terminal phase, entered exactly once."""
    last = views.final_read
    if last is None:
        yield "no list was answered after everything was healed"
        return
    for job in sorted(views.acknowledged):
        phase = last.jobs.get(job, (ABSENT, 0))[0]
        if phase not in TERMINAL:
            yield f"job {job} was acknowledged and is {phase} in the end"
    ends = Counter(e["job"] for e in views.journal().values() if e["what"] == "Ended")
    for job in sorted(last.jobs):
        if ends[job] != 1:
            yield f"job {job} ended {ends[job]} times"
    for job in sorted(last.jobs.keys() - views.submitted):
        yield f"job {job} is known, and every submission of it was refused"


def together_or_not_at_all(views: Views) -> Iterator[str]:
    """Of the jobs of one request, either all or none are known in the end."""
    last = views.final_read
    if last is None:
        return
    for one in views.operations:
        if one.what == "submit" and len({job in last.jobs for job in one.asked}) > 1:
            yield f"of {one.asked}, submitted together, some are known and some are not"


def the_same_job_is_taken_again(views: Views) -> Iterator[str]:
    """The same job of the same name is never refused."""
    for one in views.operations:
        if one.what == "submit" and one.outcome == "fail" and str(one.result).startswith("refused"):
            yield f"{one.asked}: {one.result}"


def attempts_never_overlap(views: Views) -> Iterator[str]:
    """No two attempts of a job are alive at once, and no attempt begins twice."""
    for job, lines in _by_job(views.ledger).items():
        begun: Counter[int] = Counter(line.attempt for line in lines if line.what == "begin")
        for attempt, times in begun.items():
            if times > 1:
                yield f"attempt {attempt} of job {job} began {times} times"
        spans: dict[int, tuple[int, int]] = {}
        for line in lines:
            first, _ = spans.get(line.attempt, (line.at, 0))
            spans[line.attempt] = first, line.at
            if line.what == "beside":
                yield (
                    f"attempt {line.attempt} of job {job} found process {line.number} of the same "
                    "job alive as it began"
                )
        in_order = sorted(spans.items(), key=lambda span: span[1])
        for (one, (_, end)), (other, (begin, _)) in pairwise(in_order):
            if begin < end:
                yield (
                    f"attempt {other} of job {job} began {(end - begin) / 1e9:.3f} s before the "
                    f"last line of attempt {one}"
                )
            if other < one:
                yield f"attempt {other} of job {job} began after attempt {one}"


def attempts_are_over_when_given_up(views: Views) -> Iterator[str]:
    """Once a watcher has received that an attempt returned or its job ended, none of it is alive.

    Without slack: also of a node that was given up, where the controller has waited for its lease.
    """
    given_up = views.given_up()
    for line in views.ledger:
        at = given_up.get((line.job, line.attempt))
        if at is not None and line.at > at:
            yield (
                f"attempt {line.attempt} of job {line.job} wrote {line.what!r} "
                f"{(line.at - at) / 1e9:.3f} s after the controller had given it up"
            )


def attempts_are_placed_first(views: Views) -> Iterator[str]:
    """No process begins an attempt that the journal has not placed."""
    placed = Counter(e["job"] for e in views.journal().values() if e["what"] == "Placed")
    for line in views.ledger:
        if line.what == "begin" and line.attempt > placed[line.job]:
            yield f"attempt {line.attempt} of job {line.job} began, {placed[line.job]} were placed"


def saved_work_is_kept(views: Views) -> Iterator[str]:
    """An attempt begins at the last saved step or later."""
    saved: Counter[str] = Counter()
    for line in sorted(views.ledger):
        if line.what == "begin" and line.number < saved[line.job]:
            yield (
                f"attempt {line.attempt} of job {line.job} began at {line.number}, "
                f"{saved[line.job]} were saved"
            )
        if line.what == "saved":
            saved[line.job] = max(saved[line.job], line.number)


def jobs_are_linearizable(views: Views) -> Iterator[str]:
    """Submissions, cancellations and reads of each job have an order that explains them all."""
    for job, calls in sorted(views.calls_of_jobs().items()):
        broken = check_linearizable(calls, job_step, None)
        if broken is not None:
            yield f"job {job}: {broken.call.content} contradicts every order; was {broken.states}"


def drains_are_linearizable(views: Views) -> Iterator[str]:
    """Drains and reads of each node have an order that explains them all."""
    for node, calls in sorted(views.calls_of_nodes().items()):
        broken = check_linearizable(calls, drained_step, False)
        if broken is not None:
            yield f"node {node}: {broken.call.content} contradicts every order"


def reads_are_monotonic(views: Views) -> Iterator[str]:
    """A read that begins after another has completed sees no older journal, through any client."""
    reads = [read for read in views.reads if read.last_entry >= 0]
    moments: list[tuple[int, int, Read]] = []
    for read in reads:
        moments.append((read.operation.begin, 0, read))
        moments.append((read.operation.end or 0, 1, read))
    newest, least = 0, {}
    for _, is_end, read in sorted(moments, key=lambda moment: moment[:2]):
        if not is_end:
            least[id(read)] = newest
            continue
        if read.last_entry < least[id(read)]:
            yield (
                f"{read.operation.process} read entry {read.last_entry} after another client had "
                f"read entry {least[id(read)]}"
            )
        newest = max(newest, read.last_entry)


def reads_agree_with_events(views: Views) -> Iterator[str]:
    """A list shows each job in the state that results from the events up to the list's entry."""
    events = views.events_of_jobs()
    for job, its in sorted(events.items()):
        try:
            replayed(its)
        except ValueError as error:
            yield f"job {job}: {error}"
            continue
        for read in views.reads:
            if read.last_entry < 0 or not (read.whole or job in read.jobs):
                continue
            phase, attempt = read.jobs.get(job, (ABSENT, 0))
            expected = replayed([e for e in its if e["entry"] <= read.last_entry])
            if (as_running(phase), attempt) != expected:
                yield (
                    f"job {job}: a list as of entry {read.last_entry} said {phase} in attempt "
                    f"{attempt}, its events say {expected[0]} in attempt {expected[1]}"
                )


def watchers_see_every_event_in_order(views: Views) -> Iterator[str]:
    """Each watcher receives the entries after where it began, one by one, the same as the others.

    One that was cut off asks for those after the last that it has received.
    """
    journal = views.journal()
    last: dict[str, int] = {}
    for event in views.events:
        entry, process = event.value["entry"], event.process
        before = last.get(process)
        if before is not None and entry != before + 1:
            yield f"watcher {process} received entry {entry} after entry {before}"
        last[process] = entry
        if event.value != journal[entry]:
            yield f"entry {entry} was {journal[entry]} and later {event.value}"
    final = views.final_read
    if final is not None and final.last_entry != max(journal, default=0):
        yield f"the last entry is {final.last_entry}, watched were {max(journal, default=0)}"
    if journal and min(journal) != 1:
        yield f"entry 1 was never received, the first was {min(journal)}"


def what_is_over_stays_over(views: Views) -> Iterator[str]:
    """After a client has read a terminal phase no process of the job is alive, and no read differs.

    Without slack: a terminal phase is written once the last attempt is known to have ended.
    """
    seen: dict[str, tuple[int, str, int]] = {}
    for read in sorted(views.reads, key=lambda read: read.operation.end or 0):
        for job, (phase, attempt) in read.jobs.items():
            end = read.operation.end or 0
            if phase in TERMINAL and job not in seen:
                seen[job] = end, phase, attempt
            later = job in seen and read.operation.begin > seen[job][0]
            if later and seen[job][1:] != (phase, attempt):
                yield f"job {job} was {seen[job][1:]} and later {(phase, attempt)}"
    for line in views.ledger:
        if line.job in seen and line.at > seen[line.job][0]:
            late_s = (line.at - seen[line.job][0]) / 1e9
            yield f"job {line.job} wrote {line.what!r} {late_s:.3f} s after it was read as over"


def cancelled_jobs_do_not_begin(views: Views) -> Iterator[str]:
    """After a cancellation is acknowledged no attempt is placed; none begins later than the lease.

    A node that is cut off may begin what it was given before, for as long as its lease: then
    SLACK_S for its processes to start.
    """
    bound_ns = (views.meta["lease_s"] + SLACK_S) * 1e9
    acknowledged: dict[str, int] = {}
    for one in views.operations:
        if one.what == "cancel" and one.end is not None and one.outcome == "ok":
            acknowledged.setdefault(one.asked, one.end)
    for line in views.ledger:
        at = acknowledged.get(line.job)
        if line.what == "begin" and at is not None and line.at > at + bound_ns:
            late_s = (line.at - at) / 1e9
            yield f"attempt {line.attempt} of job {line.job} began {late_s:.1f} s after its cancel"
    final = {} if views.final_read is None else views.final_read.jobs
    for job in sorted(acknowledged.keys() & final.keys()):
        if final[job][0] not in TERMINAL:
            yield f"job {job} was cancelled and is {final[job]}"


def ends_are_true(views: Views) -> Iterator[str]:
    """A FINISHED job has reached its end, and for a CANCELLED job a cancellation was requested."""
    final = {} if views.final_read is None else views.final_read.jobs
    ended = {line.job for line in views.ledger if line.what == "end"}
    asked = {one.asked for one in views.operations if one.what == "cancel"}
    for job, (phase, _) in sorted(final.items()):
        if phase == FINISHED and job not in ended:
            yield f"job {job} is FINISHED, and no attempt came to its end"
        if phase == CANCELLED and job not in asked:
            yield f"job {job} is CANCELLED, and no client asked for that"


def second_controllers_are_refused(views: Views) -> Iterator[str]:
    """A second controller on the journal, or on the port, of one that lives ends at once."""
    for fault in views.faults:
        refused = fault.what in ("second_controller", "rival_on_port")
        if refused and fault.value["status"] in (0, None):
            yield f"{fault.what} ended with {fault.value['status']}"


def nothing_is_left_over(views: Views) -> Iterator[str]:
    """In the end there is no process, mount, namespace, control group or task folder."""
    if not views.final:
        yield "leftovers were not looked for"
    for entry in views.final:
        for one in entry.value:
            yield f"{entry.what}: {one}"


LAWS: Mapping[str, Callable[[Views], Iterable[str]]] = {
    law.__name__.replace("_", " "): law
    for law in (
        acknowledged_is_never_lost,
        together_or_not_at_all,
        the_same_job_is_taken_again,
        attempts_never_overlap,
        attempts_are_over_when_given_up,
        attempts_are_placed_first,
        saved_work_is_kept,
        jobs_are_linearizable,
        drains_are_linearizable,
        reads_are_monotonic,
        reads_agree_with_events,
        watchers_see_every_event_in_order,
        what_is_over_stays_over,
        cancelled_jobs_do_not_begin,
        ends_are_true,
        second_controllers_are_refused,
        nothing_is_left_over,
    )
}


def check(history: Sequence[Entry]) -> list[Violation]:
    """Return every violation of every law; none if the history is sound."""
    views = Views(history)
    return [
        Violation(name, how) for name, law in LAWS.items() for how in _first(law(views), _MOST_SAID)
    ]


def _first(sentences: Iterable[str], most: int) -> list[str]:
    found: list[str] = []
    for sentence in sentences:
        if len(found) == most:
            return [*found, "and more"]
        found.append(sentence)
    return found


def _by_job(ledger: Iterable[LedgerLine]) -> dict[str, list[LedgerLine]]:
    found: dict[str, list[LedgerLine]] = defaultdict(list)
    for line in sorted(ledger):
        found[line.job].append(line)
    return found


def summary(history: Sequence[Entry]) -> dict[str, Any]:
    """Counts for the table: faults by kind, operations by outcome, jobs, attempts, entries."""
    views = Views(history)
    begun = Counter(line.job for line in views.ledger if line.what == "begin")
    last = views.final_read
    return {
        "faults": dict(sorted(Counter(f.what for f in views.faults).items())),
        "operations": dict(sorted(Counter(one.outcome for one in views.operations).items())),
        "by_operation": dict(sorted(Counter(one.what for one in views.operations).items())),
        "jobs": 0 if last is None else len(last.jobs),
        "phases": dict(sorted(Counter(p for p, _ in last.jobs.values()).items())) if last else {},
        "acknowledged": len(views.acknowledged),
        "attempts": sum(begun.values()),
        "again": sum(1 for times in begun.values() if times > 1),
        "placements": sum(e["what"] == "Placed" for e in views.journal().values()),
        "nodes_lost": sum(e["what"] == "NodeLost" for e in views.journal().values()),
        "entries": len(views.journal()),
        "events": len(views.events),
        "ledger_lines": len(views.ledger),
        "notes": [[e.what, e.value] for e in history if e.kind == "note"],
    }
