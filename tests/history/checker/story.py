"""Histories written by hand, one second an entry, to try the laws on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tests.history.record import Entry

Row = tuple[str, str, int]  # job, phase, attempt


class Story:
    """Builder of a history; every method appends an entry and returns the story itself."""

    def __init__(self, lease_s: float = 3.0) -> None:
        self.entries: list[Entry] = []
        self._ops = self._seq = 0
        self._at_s = 0
        self._add("meta", "harness", "run", {"lease_s": lease_s})

    def later(self, seconds: int) -> Self:
        """Let time pass."""
        self._at_s += seconds
        return self

    def begin(self, process: str, what: str, asked: Any = None) -> int:
        """Invoke an operation; its number."""
        self._ops += 1
        self._add("invoke", process, what, asked, self._ops)
        return self._ops

    def end(self, op: int, result: Any = None, kind: str = "ok") -> Self:
        """Complete an operation."""
        begun = next(e for e in self.entries if e.op == op)
        return self._add(kind, begun.process, begun.what, result, op)

    def do(
        self, process: str, what: str, asked: Any = None, result: Any = None, kind: str = "ok"
    ) -> Self:
        """An operation that overlaps with no other."""
        return self.end(self.begin(process, what, asked), result, kind)

    def submit(self, *jobs: str, known: Sequence[str] = (), process: str = "c0") -> Self:
        """An acknowledged submission."""
        return self.do(process, "submit", list(jobs), {"known": list(known)})

    def cancel(self, job: str, process: str = "c0") -> Self:
        """An acknowledged cancellation."""
        return self.do(process, "cancel", job)

    def read(self, *rows: Row, entry: int = -1, process: str = "c0") -> Self:
        """A list of one job."""
        return self.do(
            process, "read", rows[0][0], {"jobs": [list(r) for r in rows], "entry": entry}
        )

    def list(self, *rows: Row, process: str = "c0", entry: int | None = None) -> Self:
        """A list of all jobs, as of the last event."""
        seq = self._seq if entry is None else entry
        return self.do(process, "list", None, {"jobs": [list(r) for r in rows], "entry": seq})

    def event(
        self, what: str, job: str = "", detail: str = "", *, watcher: str = "w0", entry: int = 0
    ) -> Self:
        """An event that a watcher receives: the next one, or one of a number."""
        self._seq = entry or self._seq + 1
        value = {"entry": self._seq, "what": what, "job": job, "node": "", "detail": detail}
        return self._add("event", watcher, what, value)

    def ledger(self, what: str, job: str, attempt: int, number: int = 0, pid: int = 7) -> Self:
        """A line of a job."""
        return self._add("ledger", "job", what, [job, attempt, pid, number])

    def fault(self, what: str, value: Any) -> Self:
        """A fault."""
        return self._add("fault", "nemesis", what, value)

    def left(self, *what: str) -> Self:
        """What was found at the end."""
        return self._add("final", "harness", "left", list(what))

    def _add(self, kind: str, process: str, what: str, value: Any, op: int | None = None) -> Self:
        self._at_s += 1
        self.entries.append(Entry(self._at_s * 10**9, kind, process, what, value, op))
        return self


def first_attempt(story: Story | None = None) -> Story:
    """Job a is submitted, and runs; six iterations are done, five saved."""
    told = (story or Story()).submit("a").event("Submitted", "a").event("Placed", "a")
    told.ledger("begin", "a", 1).event("Started", "a")
    return told.ledger("tick", "a", 1, 5).ledger("saved", "a", 1, 5).ledger("tick", "a", 1, 6)


def second_attempt(story: Story | None = None) -> Story:
    """Job a is evicted, and goes on from what it saved."""
    told = first_attempt(story).event("Stopping", "a", "node n0 is drained").event("Requeued", "a")
    return told.event("Placed", "a").ledger("begin", "a", 2, 5).event("Started", "a")


def sound() -> Story:
    """Return a history that satisfies every law."""
    told = second_attempt().ledger("end", "a", 2, 10).event("Ended", "a", "finished after 2 s")
    return told.list(("a", "FINISHED", 2), process="final").left()
