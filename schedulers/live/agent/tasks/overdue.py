"""Termination, by the agent, of tasks that outlive the lease because their shim is stopped."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable
from pathlib import Path

from presage.schedulers.live.agent.connection.lease import read_lease
from presage.schedulers.live.agent.tasks.processes import send, stat
from presage.schedulers.live.agent.tasks.task import TERMINATE_S
from presage.schedulers.live.agent.tasks.task_process import Task
from presage.serving.server.log import log

OVERDUE_S = 3.0  # after the lease and the grace period; less than END_S
_STOPPED = "T"


def end_overdue(state: Path, tasks: Iterable[Task], now_s: float) -> None:
    """Kill stopped shims whose jobs should have ended with the lease by now.

    A shim ends its job when the lease is over. A stopped shim (SIGSTOP) cannot, and the
    controller starts the next attempt elsewhere after a while. The job's first process dies with
    its shim; :func:`presage.schedulers.live.agent.tasks.leftovers.sweep` kills the others.

    Parameters
    ----------
    now_s : float
        By the boot-time clock.
    """
    until_s = read_lease(state)
    if until_s is None:
        return
    for task in tasks:
        ended_s = until_s + task.spec.grace_s + TERMINATE_S + OVERDUE_S
        holder = task.folder.holder() if now_s > ended_s else None
        found = stat(holder) if holder else None
        if holder and found is not None and found.state == _STOPPED:
            log(logging.WARNING, "stopped shim killed: the lease is over", job=task.spec.job_id)
            send(signal.SIGKILL, {holder: found})
