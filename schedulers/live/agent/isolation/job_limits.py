"""What a job may take of its node, beside its device."""

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
        Processes and threads. By a control group; where there is none the account may have so many
        on the node (``RLIMIT_NPROC``), which root's jobs are not held to.
    open_files : int
        Of each process (``RLIMIT_NOFILE``, the hard limit; the soft one is the agent's own).
    memory_bytes : int
        Of the node's memory, by a control group alone: ``RLIMIT_AS`` would count the addresses that
        CUDA reserves, and ``RLIMIT_DATA`` each process by itself. 0 for what the job's processors
        have as devices, and for no limit of a job on GPUs.
    """

    processes: int = MAX_PROCESSES
    open_files: int = MAX_OPEN_FILES
    memory_bytes: int = 0


def set_limits(max_processes: int, max_open_files: int) -> None:
    """Limit this process and all that come from it; 0 for what it has. Raises OSError."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if max_processes:
        _lower(resource.RLIMIT_NPROC, max_processes)
    if max_open_files:
        _lower(resource.RLIMIT_NOFILE, max_open_files)


def _lower(which: int, most: int) -> None:
    soft, hard = (
        most if had == resource.RLIM_INFINITY else min(had, most)
        for had in resource.getrlimit(which)
    )
    resource.setrlimit(which, (soft, hard))
