"""Control groups that limit and count the resources of a task's processes.

Each task has a group ``presage/<state folder>/task-<name>`` in every hierarchy where this process
can create one: of version 2, and those of version 1 with ``cpu``, ``cpuacct``, ``memory`` or
``pids``. A machine may have both, or none. Without them a duty cycle limits processors, memory is
read from ``/proc`` and not limited, and processes are limited per account.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from presage.schedulers.live.agent.tasks.file_names import safe_name
from presage.schedulers.live.agent.tasks.task import BY_WEIGHT

_USED = frozenset(("cpu", "cpuacct", "memory", "pids"))
_PERIOD_US = 100_000
_MIN_QUOTA_US = 1000  # limits of the kernel
_MAX_PERIOD_US = 1_000_000
_MAX_WEIGHT = 10_000  # in version 2
_TRIES = 10
_REMOVING_S = 1.0  # a group is busy for a moment after its last process has ended


class Hierarchy(NamedTuple):
    """Mounted tree of control groups, and the controllers available in it."""

    version: int
    mount: Path
    controllers: frozenset[str]


class Group(NamedTuple):
    """Group of a task in one hierarchy."""

    version: int
    path: Path
    controllers: frozenset[str]

    def read(self, name: str) -> str:
        """Return the content of a file of the group; "" if there is no such file."""
        try:
            return (self.path / name).read_text()
        except OSError:
            return ""

    def write(self, name: str, value: str) -> bool:
        """Write a file of the group; return whether the kernel accepted it."""
        try:
            (self.path / name).write_text(value)
        except OSError:
            return False
        return True

    def counter(self, name: str, key: str = "") -> int | None:
        """Return a number from a file of the group: the whole file, or the value of ``key``."""
        for line in self.read(name).splitlines():
            found, _, number = line.rpartition(" ")
            if found == key and number.isdecimal():
                return int(number)
        return None


class Isolation:
    """Control groups of one task; without any, limits are refused and counters are unknown."""

    def __init__(self, groups: list[Group]) -> None:
        self._groups = groups

    def enter(self, pid: int) -> None:
        """Move a process into the groups; remove the groups that refuse it."""
        entered = []
        for group in self._groups:
            if group.write("cgroup.procs", str(pid)):
                entered.append(group)
            else:
                _remove(group.path)
        self._groups = entered

    def limit_cpus(self, cpus: float | None) -> str:
        """Limit the task to a number of processors; None for no limit.

        Returns the mechanism, such as "cgroup v2"; "" if it cannot be limited.
        """
        group = self._with("cpu")
        if group is None:
            return ""
        period_us = _PERIOD_US
        if cpus is not None and cpus * period_us < _MIN_QUOTA_US:
            period_us = _MAX_PERIOD_US
        quota_us = None if cpus is None else max(_MIN_QUOTA_US, round(cpus * period_us))
        if group.version == 2:
            accepted = group.write(
                "cpu.max", f"{'max' if quota_us is None else quota_us} {period_us}"
            )
        else:
            accepted = group.write("cpu.cfs_period_us", str(period_us)) and group.write(
                "cpu.cfs_quota_us", str(-1 if quota_us is None else quota_us)
            )
        return f"cgroup v{group.version}" if accepted else ""

    def weigh(self, weight: int) -> str:
        """Share the processors with other tasks in proportion to a weight, under contention.

        Idle processors may be used beyond the share. Returns the mechanism; "" if there is none.
        """
        group = self._with("cpu")
        if group is None:
            return ""
        if group.version == 2:
            accepted = group.write("cpu.weight", str(min(_MAX_WEIGHT, max(1, weight // 10))))
        else:
            accepted = group.write("cpu.shares", str(max(2, weight)))
        return f"cgroup v{group.version}{BY_WEIGHT}" if accepted else ""

    def limit_processes(self, max_processes: int) -> bool:
        """Limit the number of processes and threads; return False if it cannot be limited."""
        group = self._with("pids")
        return group is not None and group.write("pids.max", str(max_processes))

    def limit_memory(self, max_bytes: int) -> bool:
        """Limit the memory, including swap; return False if it cannot be limited.

        If the task exceeds the limit, the kernel kills one of its processes.
        """
        group = self._with("memory")
        if group is None:
            return False
        if group.version == 2:
            group.write("memory.swap.max", "0")  # missing if the machine has no swap
            return group.write("memory.max", str(max_bytes))
        accepted = group.write("memory.limit_in_bytes", str(max_bytes))
        group.write("memory.memsw.limit_in_bytes", str(max_bytes))
        return accepted

    def cpu_s(self) -> float | None:
        """Return the processor time of all processes that ran in the task; None if unknown."""
        for group in self._groups:
            if (spent_us := group.counter("cpu.stat", "usage_usec")) is not None:
                return spent_us / 1e6
            if (spent_ns := group.counter("cpuacct.usage")) is not None:
                return spent_ns / 1e9
        return None

    def memory_bytes(self) -> int | None:
        """Return the memory that cannot be reclaimed, without the page cache; None if unknown."""
        group = self._with("memory")
        if group is None:
            return None
        keys = ("anon", "shmem") if group.version == 2 else ("total_rss", "total_shmem")
        parts = [group.counter("memory.stat", key) for key in keys]
        return None if None in parts else sum(part or 0 for part in parts)

    def out_of_memory_kills(self) -> int:
        """Return how many processes of the task the kernel killed for lack of memory."""
        group = self._with("memory")
        if group is None:
            return 0
        file = "memory.events" if group.version == 2 else "memory.oom_control"
        return group.counter(file, "oom_kill") or 0

    def pids(self) -> set[int]:
        """Return the processes in any of the groups."""
        return {int(pid) for group in self._groups for pid in group.read("cgroup.procs").split()}

    def kill(self) -> None:
        """Kill all processes of the groups at once, if the kernel supports it."""
        for group in self._groups:
            group.write("cgroup.kill", "1")

    def remove(self) -> None:
        """Remove the groups, once no process of the task runs."""
        until_s = time.monotonic() + _REMOVING_S
        for group in self._groups:
            while not _remove(group.path) and time.monotonic() < until_s:
                time.sleep(0.01)

    def _with(self, controller: str) -> Group | None:
        return next((group for group in self._groups if controller in group.controllers), None)


def make_isolation(state: Path, name: str) -> Isolation:
    """Create a task's groups in every hierarchy that permits it."""
    made = (_create(hierarchy, _relative_path(state, name)) for hierarchy in hierarchies())
    return Isolation([group for group in made if group is not None])


def find_isolation(state: Path, name: str) -> Isolation:
    """Return the existing groups of a task."""
    return Isolation(
        [
            _group(hierarchy, path)
            for hierarchy in hierarchies()
            if (path := hierarchy.mount / _relative_path(state, name)).is_dir()
        ]
    )


def task_group_names(state: Path) -> set[str]:
    """Return the names of all tasks of a state folder with a group, including ended ones."""
    return {
        path.name.removeprefix("task-")
        for hierarchy in hierarchies()
        for path in (hierarchy.mount / _relative_path(state, "")).parent.glob("task-*")
    }


def hierarchies() -> Iterator[Hierarchy]:
    """Yield the visible hierarchies with a controller that is used here."""
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, source = line.partition(" - ")
            kind, _, options = source.split(" ", 2)
            # A space in a path is written as \040; no cgroup is mounted at such a path.
            path = Path(mount.split(" ")[4])
            if kind == "cgroup2":
                yield Hierarchy(2, path, _controllers(path))
            elif kind == "cgroup" and (available := _USED & set(options.split(","))):
                yield Hierarchy(1, path, available)


def _controllers(path: Path) -> frozenset[str]:
    """Return the controllers of a version 2 group."""
    try:
        return _USED & frozenset((path / "cgroup.controllers").read_text().split())
    except OSError:
        return frozenset()


def _relative_path(state: Path, name: str) -> Path:
    return Path("presage") / safe_name(str(state.resolve())) / f"task-{name}"


def _create(hierarchy: Hierarchy, relative: Path) -> Group | None:
    path = hierarchy.mount / relative
    for _ in range(_TRIES):
        try:
            for above in (hierarchy.mount, hierarchy.mount / "presage", path.parent):
                above.mkdir(exist_ok=True)
                for controller in sorted(_controllers(above)) if hierarchy.version == 2 else ():
                    with suppress(OSError):
                        (above / "cgroup.subtree_control").write_text(f"+{controller}")
            path.mkdir(exist_ok=True)
            return _group(hierarchy, path)
        except FileNotFoundError:
            continue  # the last other task just ended, and its parent folders were removed
        except OSError:
            break
    return None


def _group(hierarchy: Hierarchy, path: Path) -> Group:
    available = _controllers(path) if hierarchy.version == 2 else hierarchy.controllers
    return Group(hierarchy.version, path, available)


def _remove(path: Path) -> bool:
    """Remove a group, and its parents if they are empty; return whether the group is gone."""
    try:
        path.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        return False
    with suppress(OSError):
        path.parent.rmdir()
        path.parent.parent.rmdir()
    return True
