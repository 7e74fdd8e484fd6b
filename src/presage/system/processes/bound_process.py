"""Command that ends with its parent: ``python -m presage.system.processes.bound_process PID ...``.

It ends also if the parent is killed. So an agent does not outlive the actor of Ray that owns its
devices, and a server not the command that started it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from presage.system.processes.child_process import die_with_parent

MODULE = "presage.system.processes.bound_process"


def bound_command(command: Sequence[str]) -> list[str]:
    """Return a command that the kernel kills when the thread of this process that runs it ends."""
    return [sys.executable, "-m", MODULE, str(os.getpid()), *command]


def main() -> None:
    """Become the command; the bond survives that."""
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the command of bound_command


if __name__ == "__main__":
    main()
