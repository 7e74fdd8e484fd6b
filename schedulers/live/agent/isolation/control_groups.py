"""What holds a task's processes to their share of processors, and counts: control groups, if any.

Each task has a group ``presage/<state folder>/task-<name>`` in every hierarchy that lets us make
one: of version 2, and those of version 1 that have ``cpu``, ``cpuacct``, ``memory`` or ``pids``. A
machine may have both, or none; then a duty cycle does for processors, memory is read from ``/proc``
and not limited, and processes are limited by account.
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
_LEAST_QUOTA_US = 1000  # the kernel takes no less, and no period above a second
_LONGEST_PERIOD_US = 1_000_000
_MOST_WEIGHT = 10_000  # that version 2 takes
_TRIES = 10
_REMOVING_S = 1.0  # a group is busy for a moment after its last process has ended


class Hierarchy(NamedTuple):
    """A mounted tree of control groups, and the controllers that groups in it may have."""

    version: int
    mount: Path
    controllers: frozenset[str]


class Group(NamedTuple):
    """A task's group in one hierarchy."""

    version: int
    path: Path
    controllers: frozenset[str]

    def read(self, name: str) -> str:
        """A file of the group; "" where it has none such."""
        try:
            return (self.path / name).read_text()
        except OSError:
            return ""

    def write(self, name: str, value: str) -> bool:
        """Whether the kernel took it."""
        try:
            (self.path / name).write_text(value)
        except OSError:
            return False
        return True

    def counter(self, name: str, key: str = "") -> int | None:
        """A number in a file of the group: all of it, or what stands beside ``key``."""
        for line in self.read(name).splitlines():
            said, _, number = line.rpartition(" ")
            if said == key and number.isdecimal():
                return int(number)
        return None


class Isolation:
    """The groups of one task; without any, each limit is refused and nothing is known."""

    def __init__(self, groups: list[Group]) -> None:
        self._groups = groups

    def enter(self, pid: int) -> None:
        """Put a process into the groups; those that do not take it are not the task's."""
        kept = []
        for group in self._groups:
            if group.write("cgroup.procs", str(pid)):
                kept.append(group)
            else:
                _remove(group.path)
        self._groups = kept

    def limit_cpus(self, cpus: float | None) -> str:
        """Let the task use so many processors at most, any number if None; "" if that cannot be."""
        group = self._with("cpu")
        if group is None:
            return ""
        period_us = _PERIOD_US
        if cpus is not None and cpus * period_us < _LEAST_QUOTA_US:
            period_us = _LONGEST_PERIOD_US
        quota_us = None if cpus is None else max(_LEAST_QUOTA_US, round(cpus * period_us))
        if group.version == 2:
            took = group.write("cpu.max", f"{'max' if quota_us is None else quota_us} {period_us}")
        else:
            took = group.write("cpu.cfs_period_us", str(period_us)) and group.write(
                "cpu.cfs_quota_us", str(-1 if quota_us is None else quota_us)
            )
        return f"cgroup v{group.version}" if took else ""

    def weigh(self, weight: int) -> str:
        """Let the task have its processors in proportion to others, when all are wanted.

        Of what they leave it may use more. "" if that cannot be.
        """
        group = self._with("cpu")
        if group is None:
            return ""
        if group.version == 2:
            took = group.write("cpu.weight", str(min(_MOST_WEIGHT, max(1, weight // 10))))
        else:
            took = group.write("cpu.shares", str(max(2, weight)))
        return f"cgroup v{group.version}{BY_WEIGHT}" if took else ""

    def limit_processes(self, most: int) -> bool:
        """Let the task have so many processes and threads at most; False if that cannot be."""
        group = self._with("pids")
        return group is not None and group.write("pids.max", str(most))

    def limit_memory(self, most_bytes: int) -> bool:
        """Let the task take so much memory at most, swapped out or not; False if that cannot be.

        Of one that needs more the kernel kills a process.
        """
        group = self._with("memory")
        if group is None:
            return False
        if group.version == 2:
            group.write("memory.swap.max", "0")  # not there where nothing is swapped
            return group.write("memory.max", str(most_bytes))
        took = group.write("memory.limit_in_bytes", str(most_bytes))
        group.write("memory.memsw.limit_in_bytes", str(most_bytes))
        return took

    def cpu_s(self) -> float | None:
        """Processor time of all that ever ran in the task."""
        for group in self._groups:
            if (spent_us := group.counter("cpu.stat", "usage_usec")) is not None:
                return spent_us / 1e6
            if (spent_ns := group.counter("cpuacct.usage")) is not None:
                return spent_ns / 1e9
        return None

    def memory_bytes(self) -> int | None:
        """What the task has taken and cannot be taken back: the cache of files is not in it."""
        group = self._with("memory")
        if group is None:
            return None
        keys = ("anon", "shmem") if group.version == 2 else ("total_rss", "total_shmem")
        parts = [group.counter("memory.stat", key) for key in keys]
        return None if None in parts else sum(part or 0 for part in parts)

    def out_of_memory_kills(self) -> int:
        """Processes of the task that the kernel killed because it had no more memory."""
        group = self._with("memory")
        if group is None:
            return 0
        file = "memory.events" if group.version == 2 else "memory.oom_control"
        return group.counter(file, "oom_kill") or 0

    def pids(self) -> set[int]:
        """Processes that are in any of the groups."""
        return {int(pid) for group in self._groups for pid in group.read("cgroup.procs").split()}

    def kill(self) -> None:
        """Kill all that is in the groups at once, where the kernel does that."""
        for group in self._groups:
            group.write("cgroup.kill", "1")

    def remove(self) -> None:
        """Of a task of which nothing runs."""
        until_s = time.monotonic() + _REMOVING_S
        for group in self._groups:
            while not _remove(group.path) and time.monotonic() < until_s:
                time.sleep(0.01)

    def _with(self, controller: str) -> Group | None:
        return next((group for group in self._groups if controller in group.controllers), None)


def make_isolation(state: Path, name: str) -> Isolation:
    """Make a task's groups wherever this machine lets us."""
    made = (_make(hierarchy, _place(state, name)) for hierarchy in hierarchies())
    return Isolation([group for group in made if group is not None])


def find_isolation(state: Path, name: str) -> Isolation:
    """The groups that a task has."""
    return Isolation(
        [
            _group(hierarchy, path)
            for hierarchy in hierarchies()
            if (path := hierarchy.mount / _place(state, name)).is_dir()
        ]
    )


def names_of_groups(state: Path) -> set[str]:
    """Names of the tasks of a state folder that have a group, also of those that are gone."""
    return {
        path.name.removeprefix("task-")
        for hierarchy in hierarchies()
        for path in (hierarchy.mount / _place(state, "")).parent.glob("task-*")
    }


def hierarchies() -> Iterator[Hierarchy]:
    """Those that this process sees and that have something for us."""
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, source = line.partition(" - ")
            kind, _, options = source.split(" ", 2)
            # A space in a path is written as \040; no cgroup is mounted at such a one.
            path = Path(mount.split(" ")[4])
            if kind == "cgroup2":
                yield Hierarchy(2, path, _offered(path))
            elif kind == "cgroup" and (offered := _USED & set(options.split(","))):
                yield Hierarchy(1, path, offered)


def _offered(path: Path) -> frozenset[str]:
    """Controllers of a group of version 2."""
    try:
        return _USED & frozenset((path / "cgroup.controllers").read_text().split())
    except OSError:
        return frozenset()


def _place(state: Path, name: str) -> Path:
    return Path("presage") / safe_name(str(state.resolve())) / f"task-{name}"


def _make(hierarchy: Hierarchy, place: Path) -> Group | None:
    path = hierarchy.mount / place
    for _ in range(_TRIES):
        try:
            for above in (hierarchy.mount, hierarchy.mount / "presage", path.parent):
                above.mkdir(exist_ok=True)
                for controller in sorted(_offered(above)) if hierarchy.version == 2 else ():
                    with suppress(OSError):
                        (above / "cgroup.subtree_control").write_text(f"+{controller}")
            path.mkdir(exist_ok=True)
            return _group(hierarchy, path)
        except FileNotFoundError:
            continue  # the last of the other tasks just left, and took the folders above with it
        except OSError:
            break
    return None


def _group(hierarchy: Hierarchy, path: Path) -> Group:
    offered = _offered(path) if hierarchy.version == 2 else hierarchy.controllers
    return Group(hierarchy.version, path, offered)


def _remove(path: Path) -> bool:
    """Whether a group is gone; the folders above it go with the last of theirs."""
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
