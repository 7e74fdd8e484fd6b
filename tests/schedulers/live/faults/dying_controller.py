"""Controller that is killed right before or after it writes a record to its journal.

    python dying_controller.py WHEN NUMBER FILE [options of `presage cluster controller`]

WHEN is "before", "after", or "either": before those with odd numbers, after the others. NUMBER is
the record's; -K for each K-th one: then FILE notes where it died before, so that it dies before
each of them once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from presage.cli.app import app
from presage.schedulers.live.controller.journal import journal


class DyingJournal(journal.Journal):
    """Journal that kills the controller at an append."""

    when, number, noted = "after", -1, Path()

    def append(self, records: Sequence[Mapping[str, Any]]) -> int:
        first = self.last_seq + 1
        numbers = range(first, first + len(records))
        here = any(n == self.number if self.number > 0 else n % self.number == 0 for n in numbers)
        before = self.when == "before" or (self.when == "either" and first % 2 == 1)
        if here and before and self._is_new(first):
            os.kill(os.getpid(), signal.SIGKILL)
        last = super().append(records)
        if here and not before:
            os.kill(os.getpid(), signal.SIGKILL)
        return last

    def _is_new(self, first: int) -> bool:
        before = self.noted.read_text() if self.noted.exists() else ""
        if f"{first}\n" in before:
            return False
        with self.noted.open("a") as file:
            file.write(f"{first}\n")
        return True


def main() -> None:
    when, number, noted, *options = sys.argv[1:]
    DyingJournal.when, DyingJournal.number, DyingJournal.noted = when, int(number), Path(noted)
    journal.Journal = DyingJournal  # type: ignore[misc]
    app(["cluster", "controller", *options])


if __name__ == "__main__":
    main()
