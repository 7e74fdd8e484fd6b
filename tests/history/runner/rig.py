"""A live cluster whose processes, links, disks and clocks can be broken and repaired.

Each node has a link of its own to the controller. As root the first nodes also have a network
namespace, in which packets get lost; the journal and each node's state have a small file system.
What the machine does not allow is left out, and :attr:`Rig.missing` says so.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from presage.schedulers.live.agent.isolation.control_groups import hierarchies
from presage.schedulers.live.agent.tasks.file_names import safe_name
from presage.schedulers.live.agent.tasks.processes import environment, pids, stat
from presage.schedulers.live.client.client import ClusterClient
from tests.history.record import Entry, Recorder
from tests.history.runner.link import Link, Links
from tests.schedulers.live.cluster import PRESAGE, LiveCluster
from tests.schedulers.live.faults.network import Network
from tests.schedulers.live.faults.shifted_clock import ShiftedClock, shift_library
from tests.schedulers.live.job import LEDGER, processes_of
from tests.support.waiting import is_true_within

DISK_BYTES = 16 * 2**20
CLIENT_TIMEOUT_S = 2.0
CONTROLLER = "controller"
_WIRED = 2  # nodes that have a network namespace, where there can be any
_NAMESPACES = "namespaces"  # file with the namespaces of a run, for the cleanup after a kill


class Rig:
    """Made, used and closed by :func:`tests.history.runner.run.run`.

    Parameters
    ----------
    isolated : bool
        Use network namespaces and small file systems, where this machine allows them.
    """

    def __init__(
        self, folder: Path, recorder: Recorder, *, lease_s: float, nodes: int, isolated: bool
    ) -> None:
        self.nodes = [f"n{i}" for i in range(nodes)]
        self.cluster = LiveCluster(folder, lease_s=lease_s, tokens_of=self.nodes)
        self.folder, self.recorder = folder, recorder
        self.links: dict[str, Link] = {}
        self.wires: dict[str, Network] = {}
        self.disks: dict[str, Path] = {}
        self.clocks: dict[str, ShiftedClock] = {}
        self.clients: list[ClusterClient] = []
        self.missing: list[str] = []
        self._relay = Links()
        self._make_clocks()
        if isolated:
            self._make_wires()
            self._make_disks()
        else:
            self.missing.append("network namespaces and small file systems: not asked for")
        for node in self.nodes:
            address = self.wires[node].controller_address if node in self.wires else "127.0.0.1"
            self.links[node] = self._relay.add(self.cluster.port, address)

    # Components -----------------------------------------------------------------------------

    def up(self) -> None:
        """Start all, and wait until every node is given jobs."""
        self.start(CONTROLLER)
        for node in self.nodes:
            self.start(node)
        self.cluster.connected(*self.nodes)

    def start(self, name: str) -> None:
        """Start the controller or a node's agent."""
        clock = self.clocks.get(name)
        self.cluster.environment = {} if clock is None else clock.environment
        if name == CONTROLLER:
            self.cluster.controller()
            return
        by = self.wires[name].by if name in self.wires else ()
        cpu = min(os.sched_getaffinity(0))
        self.cluster.agent(
            name,
            "--controller", self.links[name].target, "--device", f"cpu-1={cpu}",
            by=(*by, *PRESAGE, "agent"),
        )  # fmt: skip

    def kill(self, name: str) -> None:
        """Kill a component, if it is there."""
        if name in self.cluster.running:
            self.cluster.kill(name)

    def pid(self, name: str) -> int | None:
        """Process of a component that lives."""
        process = self.cluster.running.get(name)
        return None if process is None or process.poll() is not None else process.pid

    def ended_by_itself(self) -> list[tuple[str, int, str]]:
        """Components that ended though no fault ended them: name, status, last words."""
        found = []
        for name, process in tuple(self.cluster.running.items()):
            if (status := process.poll()) is not None:
                del self.cluster.running[name]
                said = self.cluster.log(name).read_text(errors="replace").strip().splitlines()
                found.append((name, status, said[-1][:300] if said else ""))
        return found

    def controller_has_journal(self) -> bool:
        """Whether the controller that was started lives, and has the journal's lock."""
        pid = self.pid(CONTROLLER)
        lock = Path(f"{self.cluster.journal}.lock")
        with suppress(OSError):
            return pid is not None and f"process {pid} on" in lock.read_text(errors="replace")
        return False

    def shims(self, node: str) -> list[int]:
        """Shims of a node."""
        state = os.fsencode(self.folder / node)
        found = []
        for pid in self.cluster.shims():
            with suppress(OSError):
                if state + b"/" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return sorted(found)

    def job_processes(self, node: str | None = None) -> list[int]:
        """Processes of jobs, of one node or of all."""
        found = sorted(processes_of(str(self.cluster.ledger)))
        if node is None:
            return found
        state = os.fsencode(self.folder / node)
        return [pid for pid in found if environment(pid).get(b"PRESAGE_STATE") == state]

    def client(self) -> tuple[ClusterClient, Link]:
        """A client with a link of its own."""
        link = self._relay.add(self.cluster.port)
        made = ClusterClient(
            link.target, credentials=self.cluster.credentials, timeout_s=CLIENT_TIMEOUT_S
        )
        self.clients.append(made)
        return made, link

    def reset(self, link: Link) -> None:
        """Break the connections of a link."""
        self._relay.reset(link)

    # The end --------------------------------------------------------------------------------

    def ledger_entries(self) -> list[Entry]:
        """What jobs wrote, for the history; a line that the end cut off is left out."""
        entries = []
        for line in self.cluster.ledger.read_text().splitlines():
            words = line.split()
            if len(words) == 6:
                at, what, job, attempt, pid, number = words
                value = [job, int(attempt), int(pid), int(number)]
                entries.append(Entry(int(at), "ledger", "job", what, value))
        return entries

    def left_of_tasks(self, within_s: float) -> list[str]:
        """Shims, processes and folders of tasks that do not go within some time."""
        is_true_within(lambda: not self._of_tasks(), within_s, pause_s=0.2)
        return self._of_tasks()

    def _of_tasks(self) -> list[str]:
        left = [f"shim {pid}" for pid in self.cluster.shims()]
        left += [f"process {pid} of a job" for pid in self.job_processes()]
        for node in self.nodes:
            state = self.folder / node
            left += [f"{path}" for path in (state / "tasks").glob("[!.]*")]
            for hierarchy in hierarchies():
                group = hierarchy.mount / "presage" / safe_name(str(state.resolve()))
                left += [f"{path}" for path in group.glob("task-*")]
        return left

    def close(self) -> list[str]:
        """End all, and take everything away; what is left over all the same."""
        for client in self.clients:
            client.close()
        self.cluster.close()
        self._relay.close()
        for wire in self.wires.values():
            wire.remove()
        for disk in self.disks.values():
            subprocess.run(["umount", "-l", disk], check=False, capture_output=True)
        return left_on_machine(self.folder)

    # ----------------------------------------------------------------------------------------

    def _make_clocks(self) -> None:
        try:
            library = shift_library(self.folder)
        except (OSError, subprocess.CalledProcessError):
            self.missing.append("clocks that jump: no C compiler")
            return
        for name in (CONTROLLER, *self.nodes):
            self.clocks[name] = ShiftedClock(self.folder / f"clock-{name}", library)

    def _make_wires(self) -> None:
        first = 80 + os.getpid() % 80 * 2
        for number, node in enumerate(self.nodes[:_WIRED], first):
            wire = Network(number)
            with (self.folder / _NAMESPACES).open("a") as file:
                file.write(f"{wire.namespace}\n")
            try:
                wire.make()
            except (OSError, subprocess.CalledProcessError):
                wire.remove()
                self.missing.append("lost packets: this machine lets us make no network namespace")
                return
            self.wires[node] = wire

    def _make_disks(self) -> None:
        folders = {CONTROLLER: Path(self.cluster.journal).parent}
        folders |= {node: self.folder / node for node in self.nodes}
        for name, folder in folders.items():
            folder.mkdir(exist_ok=True)
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
            if subprocess.run(mount, capture_output=True, check=False).returncode:
                self.missing.append("full disks: this machine lets us mount no file system")
                return
            self.disks[name] = folder


def left_on_machine(folder: Path) -> list[str]:
    """Processes, mounts and namespaces of a run in a folder that are still there."""
    left = [f"process {pid}" for pid in _processes(folder)]
    left += [f"mount {path}" for path in _mounts(folder)]
    return left + [f"namespace {name}" for name in _namespaces(folder)]


def clean(folder: Path) -> None:
    """Take away what a run in a folder left that was killed, and the folder."""
    for pid in _processes(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for path in _mounts(folder):
        subprocess.run(["umount", "-l", path], check=False, capture_output=True)
    for name in _namespaces(folder):
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def _processes(folder: Path) -> list[int]:
    """Processes of the run: each names its folder in its command line, or in its environment."""
    path = os.fsencode(folder.resolve()) + b"/"
    found = []
    for pid in pids():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            ours = path in words and b"presage" in words
            ours |= environment(pid).get(LEDGER.encode(), b"").startswith(path)
            if ours and pid != os.getpid() and (said := stat(pid)) and said.state not in "ZX":
                found.append(pid)
    return found


def _mounts(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    paths = [line.split()[1].replace("\\040", " ") for line in lines]
    return [path for path in paths if path.startswith(f"{folder.resolve()}/")]


def _namespaces(folder: Path) -> list[str]:
    file = folder / _NAMESPACES
    names = file.read_text().split() if file.exists() else []
    return [name for name in names if (Path("/run/netns") / name).exists()]
