"""A clock that runs faster than the real one, shared by processes: libfaketime."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.waiting import wait_until


class FastClock:
    """Clock of all processes that have its variables, which runs faster than the real one.

    ``faketime`` makes a clock that its descendants share; one of them keeps it here.
    """

    def __init__(self, speed: float) -> None:
        command = ["faketime", "-f", f"+0 x{speed:g}", "cat"]
        self._keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        self.variables = self._read()

    def close(self) -> None:
        """Remove the clock."""
        self._keeper.communicate(timeout=10)

    def _read(self) -> dict[str, str]:
        """Return the variables of the keeper once it runs ``cat``."""
        pid = self._keeper.pid

        def variables() -> dict[str, str]:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for one in (str(pid), *children):
                text = Path(f"/proc/{one}/environ").read_bytes().decode()
                rows = dict(row.split("=", 1) for row in text.split("\0") if "=" in row)
                names = [name for name in rows if name.startswith(("FAKETIME", "LD_PRELOAD"))]
                if "FAKETIME_SHARED" in names:
                    return {name: rows[name] for name in names}
            return {}

        found: dict[str, str] = wait_until(variables, what="faketime did not start")
        return found
