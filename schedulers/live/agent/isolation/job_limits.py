"""Limits of a job on its node, apart from its devices."""

from __future__ import annotations

import resource
from dataclasses import dataclass

MAX_PROCESSES, MAX_OPEN_FILES = 4096, 65_536


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits of each job on a node; 0 for none.

    Attributes
    ----------
    processes : int
        Processes and threads, limited by a control group. Without one, the limit holds for the
        account on the node (``RLIMIT_NPROC``), which does not apply to root.
    open_files : int
        Per process (``RLIMIT_NOFILE``, the hard limit; the soft limit is the agent's own).
    memory_bytes : int
        Host memory, limited by a control group only: ``RLIMIT_AS`` would count the addresses that
        CUDA reserves, and ``RLIMIT_DATA`` holds per process. 0 for the memory of the devices of a
        CPU job, and for no limit of a GPU job.
    """

    processes: int = MAX_PROCESSES
    open_files: int = MAX_OPEN_FILES
    memory_bytes: int = 0


def set_limits(max_processes: int, max_open_files: int) -> None:
    """Limit this process and its descendants; 0 for no change. Raises OSError."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if max_processes:
        _lower(resource.RLIMIT_NPROC, max_processes)
    if max_open_files:
        _lower(resource.RLIMIT_NOFILE, max_open_files)


def _lower(which: int, limit: int) -> None:
    soft, hard = (
        limit if current == resource.RLIM_INFINITY else min(current, limit)
        for current in resource.getrlimit(which)
    )
    resource.setrlimit(which, (soft, hard))
