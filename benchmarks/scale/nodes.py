"""Loss, drain and arrival of nodes: the controller's core and its journal, without streams.

A fifth of the nodes is empty, so that the jobs of the others find free devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

from benchmarks.scale.cluster import (
    LEASE_S,
    cluster_records,
    make_cache,
    whole_report,
)
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.live.controller.journal.records import (
    NodeJoined,
    Record,
    record_to_json,
)
from presage.schedulers.live.controller.replayed_state import ReplayedState
from presage.schedulers.policies.sharing.sharing_policy import Sharing
from presage.schedulers.v1 import cluster_pb2 as pb

MOST_EVENTS = 20  # of each kind
HEARTBEAT_S, SUSPECT_S = 7.0, 15.0


class World:
    """Core with a journal and nodes, whose heartbeats are entered directly."""

    def __init__(self, nodes: int, journal: Journal) -> None:
        self.now_s, self._journal = 0.0, journal
        state, spare = ReplayedState(), nodes // 5
        for record in cluster_records(nodes, self.now_s):
            state.apply(record)
        for node in range(spare):
            name = f"spare{node}"
            devices = state.nodes["n0"].devices
            state.apply(NodeJoined(name, name, [[*one] for one in devices], self.now_s))
        self.core = Core(
            state, Sharing().controller_policy(), make_cache().get, now_s=self.now_s,
            lease_s=LEASE_S, suspect_s=SUSPECT_S,
        )  # fmt: skip
        self.reports = [whole_report(node, 1, 0, 10.0) for node in range(nodes)]
        self.reports += [empty_report(f"spare{node}") for node in range(spare)]
        for report in self.reports:
            self.report(report)
        self.step()

    def write(self, records: list[Record]) -> None:
        """Write records to the journal, and apply them."""
        if records:
            self._journal.append([record_to_json(one) for one in records])
            self.core.apply(records)

    def report(self, report: pb.NodeReport) -> None:
        """Process a report."""
        if not self.core.note_repeat(report, self.now_s):
            self.write(self.core.report(report, self.now_s, self.now_s))
            self.core.note_report(report, self.now_s)

    def step(self) -> int:
        """Do what the controller does in one pass; return the number of records."""
        lost = self.core.find_lost(self.now_s, self.now_s)
        self.write(lost)
        self.write([*self.core.end_due(self.now_s, self.now_s), *self.core.prune(self.now_s)])
        decided = self.core.decide(self.now_s, self.now_s)
        self.write(decided)
        return len(lost) + len(decided)

    def wait(self, for_s: float, silent: Iterable[str] = ()) -> None:
        """Let time pass, with heartbeats of all nodes but some."""
        end_s, gone = self.now_s + for_s, set(silent)
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + HEARTBEAT_S)
            for report in self.reports:
                if report.node not in gone:
                    self.report(report)


def empty_report(node: str) -> pb.NodeReport:
    """Return the report of a node without tasks."""
    report = whole_report(0, 1, 0, 10.0)
    report.node = report.agent_id = node
    report.ClearField("tasks")
    return report


def measure_nodes(nodes: int, folder: Path) -> dict[str, object]:
    """Return the processor times of arrivals, drains, silences and losses, in milliseconds."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"nodes-{nodes}.db"
    for old in folder.glob(f"nodes-{nodes}.db*"):
        old.unlink()
    with Journal.open(str(path)) as journal:
        began_s = time.process_time()
        world = World(nodes, journal)
        made_s = time.process_time() - began_s
        events = min(MOST_EVENTS, nodes // 20)  # so that the jobs find free devices elsewhere
        found: dict[str, object] = {"nodes": nodes, "made_s": made_s, "events": events}
        idle = [timed(world.step) for _ in range(events)]
        found["idle"] = summary(idle)
        found["join"] = summary([_join(world, f"new{number}") for number in range(events)])
        found["drain"], found["jobs"] = _drains(world, events)
        found["silence"], found["loss"] = _losses(world, events)
        return found


def _join(world: World, name: str) -> float:
    """Measure the first report of a new node, and the pass after it."""

    def join() -> None:
        assert not world.core.rejection_reason(empty_report(name))
        world.report(empty_report(name))
        world.step()

    took_ms = timed(join)
    view = world.core.current_view
    assert view is not None
    assert view.has_node(name)
    world.reports.append(empty_report(name))
    world.report(world.reports[-1])
    return took_ms


def _drains(world: World, events: int) -> tuple[dict[str, float], dict[str, float]]:
    """Measure drains with eviction, and the new placements once the jobs have left."""
    drains, jobs = [], []
    for node in range(events):

        def drain(name: str = f"n{node}") -> None:
            world.write(world.core.drain(name, undo=False, evict=True, now_s=world.now_s))
            world.step()

        def leave(number: int = node) -> None:
            world.report(whole_report(number, 2, 0, 20.0, ended=True))
            assert world.step() > 0

        drains.append(timed(drain))
        jobs.append(timed(leave))
    return summary(drains), summary(jobs)


def _losses(world: World, events: int) -> tuple[dict[str, float], dict[str, float]]:
    """Measure passes in which a node becomes silent, and in which it is lost, one by one."""
    silences, losses, gone = [], [], list[str]()
    for number in range(events, 2 * events):
        gone.append(f"n{number}")
        world.wait(SUSPECT_S + 1, gone)
        silences.append(timed(world.step))
        while not world.core.find_lost(world.now_s, world.now_s):
            world.wait(HEARTBEAT_S, gone)
        losses.append(timed(world.step))
    return summary(silences), summary(losses)


def timed(what: Callable[[], object]) -> float:
    """Return the processor time of a call in milliseconds."""
    began_s = time.process_time()
    what()
    return 1000 * (time.process_time() - began_s)


def summary(times: list[float]) -> dict[str, float]:
    """Return the median and the slowest."""
    return {"median": median(times), "slowest": max(times)}
