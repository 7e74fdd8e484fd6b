"""Controller that is killed right after it has written a record of a type to its journal.

    python dying_controller.py TYPE NUMBER [options of `presage cluster controller`]

It is the record NUMBER of that type, from 1.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from presage.cli.app import app
from presage.schedulers.live.controller.journal import journal


class DyingJournal(journal.Journal):
    """Journal that kills the controller after an append."""

    kind, left = "", 0

    def append(self, records: Sequence[Mapping[str, Any]]) -> int:
        last = super().append(records)
        found = sum(record["type"] == self.kind for record in records)
        DyingJournal.left -= found
        if found and self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return last


def main() -> None:
    kind, number, *options = sys.argv[1:]
    DyingJournal.kind, DyingJournal.left = kind, int(number)
    journal.Journal = DyingJournal  # type: ignore[misc]
    app(["cluster", "controller", *options])


if __name__ == "__main__":
    main()
