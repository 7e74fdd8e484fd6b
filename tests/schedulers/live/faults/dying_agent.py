"""Agent that is killed before or after an operation on a task's folder.

python dying_agent.py MOMENT [options of `presage cluster agent`]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from presage.cli.app import app
from presage.schedulers.live.agent import agent
from presage.schedulers.live.agent.tasks import task_process


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def then_die(function: Any) -> Any:
    def both(*words: Any, **named: Any) -> None:
        function(*words, **named)
        die()

    return both


def main() -> None:
    moment, *options = sys.argv[1:]
    module: Any = agent
    if moment in ("create", "launch", "set_desired_state", "remove"):
        setattr(module, moment, die)
    elif moment == "renamed":  # a folder that is being removed
        vars(task_process)["remove_tree"] = die
    elif moment == "created":  # but its folder has not its name yet
        rename = Path.rename
        Path.rename = lambda *words: die() if "tasks" in str(words[1]) else rename(*words)  # type: ignore
    else:
        name = {"launched": "launch", "removed": "remove"}[moment]
        setattr(module, name, then_die(getattr(module, name)))
    app(["cluster", "agent", *options])


if __name__ == "__main__":
    main()
