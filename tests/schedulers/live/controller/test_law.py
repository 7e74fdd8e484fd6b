"""Law of the live cluster: every job ends exactly once under losses, delays and kills.

Core and agents are real; processes, disks, the network and time are simulated. Messages are lost
and delayed, the controller and agents are killed between any two steps and restarted from their
disks, and nodes are disconnected until their leases expire.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from presage.errors import InvalidJobError
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.speedup import Speedup
from presage.schedulers.health.health_signal import HealthSignal, Severity
from presage.schedulers.health.xid import xid_signal
from presage.schedulers.live.agent.connection.significant_state import significant_report
from presage.schedulers.live.agent.controller_forecasts import (
    ControllerForecaster,
    ReceivedForecasts,
)
from presage.schedulers.live.agent.health.health_core import HealthCore
from presage.schedulers.live.agent.node_core import NodeCore
from presage.schedulers.live.agent.node_task import Observation, Step
from presage.schedulers.live.agent.slot import Slot
from presage.schedulers.live.controller.controller_core import END_S, Core
from presage.schedulers.live.controller.elastic.leader_report import LeaderReport
from presage.schedulers.live.controller.elastic.members import job_of_task
from presage.schedulers.live.controller.journal.records import record_from_json, record_to_json
from presage.schedulers.live.controller.operations.job_changes import (
    change_priority,
    hold_jobs,
    requeue_jobs,
)
from presage.schedulers.live.controller.replayed_state import ENDED, ReplayedState, Stage
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.policies.best_fit import BestFit
from presage.schedulers.policies.elastic.elastic_policy import Elastic
from presage.schedulers.policies.sharing.sharing_policy import Sharing
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.callers import Caller
from tests.schedulers.live.controller.scheduling_view.rebuilt import rebuilt_content, view_content

GIB = 2**30
LEASE_S, GRACE_S = 20.0, 4.0
DEVICES = [("v100", 16 * GIB), ("v100", 16 * GIB)]
SLOTS = [Slot(*device, cuda=n, pci_address=f"bus {n}") for n, device in enumerate(DEVICES)]
CODES = (79, 79, 63, 13)  # of Xid errors


class FakeForecaster:
    """Forecaster of jobs whose model states their share of a device and their run time."""

    def predictions(self, asked):
        return [self._of(job) for job, _ in asked]

    def slowdowns(self, asked):
        return [[1.0] * len(jobs) for _, jobs in asked]

    def speedups(self, asked):
        return [Speedup(*3 * (one.gpus / one.job.gpus,)) for one in asked]

    def _of(self, job):
        if not job.model:
            return None
        milli, runtime_s = map(int, job.model.split())
        return RuntimePrediction(float(runtime_s), milli, 4 * GIB, high_s=1.3 * runtime_s)


@dataclass
class Process:
    """Task on a node's disk, and whether it runs."""

    order: pb.TaskCommand
    allocations: tuple[Allocation, ...]
    began_s: float | None = None
    done: float = 0.0
    saved: float = 0.0
    ended: pb.Exit | None = None
    end_by_s: float = math.inf
    why: str = ""


@dataclass
class NodeWorld:
    """Disk of a node, and its agent if that runs."""

    name: str
    agent: NodeCore | None = None
    disk: dict[tuple[str, int], Process] = field(default_factory=dict)
    lease_s: float = -math.inf
    sent: dict[int, float] = field(default_factory=dict)
    number: int = 0
    version: int = 0
    to_controller: deque[pb.NodeReport] = field(default_factory=deque)
    to_agent: deque[pb.NodeCommands] = field(default_factory=deque)
    health: HealthCore = field(default_factory=lambda: HealthCore(SLOTS, "first"))
    agents: int = 0
    cut_until_s: float = 0.0
    last_report: pb.NodeReport | None = None  # whole, that the controller processed


class World:
    """Simulated cluster with faults, and the observations that are checked."""

    def __init__(self, seed, policy, max_ended_jobs=1000):
        self.draw = Random(seed)
        self.max_ended_jobs = max_ended_jobs
        self.dies_at, self.dies_after = 0, False  # a record, and whether it is in the journal then
        self.forgotten: dict[str, Stage] = {}
        self.policy = policy
        self.now_s = 0.0
        self.journal = []
        self.nodes = {f"n{i}": NodeWorld(f"n{i}") for i in range(3)}
        self.running: dict[str, set[tuple[str, int]]] = {}
        self.started: list[tuple[str, int]] = []
        self.faults, self.passes = True, 0
        self.done: dict[tuple[str, int], float] = {}  # by attempt of a job
        self.core = self.begin_controller()
        for node in self.nodes.values():
            self.begin_agent(node)

    # The controller

    def begin_controller(self):
        state = ReplayedState()
        for row in self.journal:
            state.apply(record_from_json(row))
        policy = {
            "sharing": Sharing(check_s=5.0, home_s=10.0).controller_policy(),
            "best-fit": BestFit(),
            "elastic": Elastic(hold_s=2.0),
        }[self.policy]
        known: dict[object, Forecasts] = {}

        def forecasts(cluster, now_s):
            key = tuple(node.name for node in cluster.nodes)
            if key not in known:
                known[key] = Forecasts(FakeForecaster(), cluster)
            return known[key]

        for node in self.nodes.values():
            node.to_agent.clear()
            node.to_controller.clear()
        return Core(
            state, policy, forecasts, now_s=self.now_s, lease_s=LEASE_S, suspect_s=6.0,
            max_ended_jobs=self.max_ended_jobs, version=self.draw.getrandbits(40) << 16,
        )  # fmt: skip

    def write(self, records):
        """Write records to the journal one by one; the controller may be killed between two."""
        rows = [record_to_json(record) for record in records]
        here = len(self.journal) < self.dies_at <= len(self.journal) + len(rows)
        if here or (rows and self.chance(0.03)):
            self.dies_at = 0
            self.journal += rows if (self.dies_after if here else self.chance(0.5)) else []
            self.core = self.begin_controller()
            return False
        self.journal += rows
        self.core.apply(records)
        return True

    def chance(self, part):
        return self.faults and self.draw.random() < part

    def control(self):
        if self.chance(0.01):
            self.core = self.begin_controller()
        for node in self.nodes.values():
            while node.to_controller and not (self.chance(0.2) or self.cut(node)):
                report = node.to_controller.popleft()
                if self.core.rejection_reason(report):
                    continue
                if self.receive(node, report):
                    version = self.core.commands_version(node.name)
                    orders = self.core.commands(node.name)
                    assert orders.version == version
                    orders.report_number = report.number
                    if self.policy == "sharing":
                        orders.sharing.CopyFrom(
                            pb.Sharing(step_milli=100, least_milli=100, check_s=5.0, overcommit=1.0)
                        )
                    node.to_agent.append(orders)
        self.forget()
        self.lead()
        if self.write(self.core.find_lost(self.now_s, self.now_s)) and self.write(
            self.core.end_due(self.now_s, self.now_s)
        ):
            self.passes += 1
            if self.passes % 5 == 0:
                self.check_view()
            records = self.core.decide(self.now_s, self.now_s)
            assert not self.core.problem
            if records and self.chance(0.05):
                self.core.discard_decision()  # the disk was full
            else:
                self.write(records)

    def receive(self, node, report):
        """Process a report, as a heartbeat if it says nothing new; return whether it counts."""
        last, now_s = node.last_report, self.now_s
        is_same = last is not None and significant_report(last) == significant_report(report)
        if is_same and self.core.note_repeat(last, now_s):
            assert not self.core.report(last, now_s, now_s)
            return True
        if not self.write(self.core.report(report, now_s, now_s)):
            return False
        self.core.note_report(report, now_s)
        node.last_report = report
        return True

    def check_view(self):
        """Check that the view, which is updated, is as if it was built now."""
        core, now_s = self.core, self.now_s
        assert view_content(core, now_s) == rebuilt_content(core, now_s)

    def lead(self):
        """Let the leaders of elastic jobs report."""
        for job in self.core.state.jobs.values():
            if job.members and not self.chance(0.2):
                done = self.done.get((job.job_id, job.attempt), job.saved)
                per_s = 1.0 / float(job.submitted.environment["runtime"])
                states = dict.fromkeys((one.name for one in job.members), "member")
                report = LeaderReport(
                    job.attempt, done, job.saved, len(states), per_s, 10.0, states, self.now_s
                )
                self.core.note_leader(job, report)

    def forget(self):
        """Check that only the jobs that ended first are pruned."""
        for record in self.core.prune(self.now_s):
            stages = {name: self.core.state.jobs[name].stage for name in record.job_ids}
            self.write([record])
            jobs = self.core.state.jobs
            self.forgotten |= {name: of for name, of in stages.items() if name not in jobs}

    # Nodes

    def cut(self, node):
        return self.now_s < node.cut_until_s

    def begin_agent(self, node):
        forecasts: list[Forecasts] = []
        received_forecasts = ReceivedForecasts()

        def of(cluster, now_s):
            if not forecasts:
                forecasts.append(Forecasts(ControllerForecaster(received_forecasts), cluster))
            return forecasts[0]

        node.agent = NodeCore(node.name, DEVICES, of, received_forecasts)
        node.agents += 1  # it reads the log again after the last recorded signal
        unrecorded = [
            HealthSignal(f"bus {one.device}", one.source, Severity(one.severity), one.reason)
            for one in node.health.pending
        ]
        node.health = HealthCore(SLOTS, f"agent {node.agents}")
        node.health.note(unrecorded, self.now_s)
        node.version = 0
        node.to_agent.clear()
        node.to_controller.clear()
        for name in sorted(node.disk, key=lambda name: name[1]):
            process = node.disk[name]
            node.agent.restore(
                process.order,
                process.allocations,
                self.now_s,
                end=process.why,
                paused=False,
                ran_s=self.now_s - (process.began_s or self.now_s),
            )
            assert name in node.agent.tasks

    def act(self, node):
        if node.agent is None:
            if not self.faults or self.draw.random() < 0.2:
                self.begin_agent(node)
            return
        if self.chance(0.02):
            node.agent = None
            return
        agent = node.agent
        while node.to_agent and not (self.chance(0.2) or self.cut(node)):
            orders = node.to_agent.popleft()
            sent_s = node.sent.pop(orders.report_number, None)
            if sent_s is not None:
                node.lease_s = max(node.lease_s, sent_s + LEASE_S)
            node.health.acknowledge(orders.signals_id, orders.signals_number)
            for task in agent.apply(orders, self.now_s):
                node.disk.pop(task.name, None)
            node.version = orders.version
        self.observe(node)
        agent.decide(self.now_s)
        for task in tuple(agent.ready()):
            if self.now_s >= node.lease_s:
                break
            node.disk[task.name] = Process(task.order, task.allocations)
            if self.chance(0.02):
                node.agent = None
                return
            agent.mark_started(task.name)
        for name, task in agent.tasks.items():
            process = node.disk.get(name)
            if process is None or process.ended is not None:
                continue
            if task.end and not process.why:
                process.why = task.end
                patience_s = self.draw.uniform(0.0, GRACE_S) if task.checkpoint else 0.0
                process.end_by_s = self.now_s + patience_s
                if task.checkpoint:
                    process.saved = process.done
            if process.began_s is None:
                self.launch(node, name, process)
        self.observe(node)
        node.number += 1
        node.sent[node.number] = self.now_s
        node.to_controller.append(
            pb.NodeReport(
                node=node.name, agent_id=f"id of {node.name}", number=node.number,
                devices=[pb.Device(kind=kind, memory_bytes=memory) for kind, memory in DEVICES],
                tasks=agent.report(), commands_version=node.version,
                signals=node.health.pending, signals_id=node.health.signals_id,
            )
        )  # fmt: skip

    def launch(self, node, name, process):
        if self.chance(0.05):
            return  # the agent dies before the shim has begun
        if process.why or self.now_s >= node.lease_s:  # so its shim finds it, and starts nothing
            process.ended = pb.Exit(
                requested=bool(process.why), lost=not process.why, description="no start"
            )
            return
        withdrawn = node.agent.backend.ledger.failed_devices
        assert withdrawn.isdisjoint(one.device for one in process.allocations), "withdrawn"
        process.began_s = self.now_s
        process.done = process.saved = process.order.done
        self.done.setdefault((job_of_task(name[0])[0], name[1]), process.done)
        assert name not in self.started, f"{name} was started twice"
        self.started.append(name)
        there = self.running.setdefault(name[0], set())
        there.add(name)
        assert len(there) == 1, f"{there} run at once"
        job_id, number = job_of_task(name[0])
        attempts = {one[1] for task in self.running.values() for one in task
                    if job_of_task(one[0]) [0] == job_id}  # fmt: skip
        assert not number or attempts == {name[1]}, f"attempts {attempts} of {job_id} run at once"

    def observe(self, node):
        for name, process in node.disk.items():
            if name not in node.agent.tasks or (process.began_s is None and not process.ended):
                continue
            if node.agent.tasks[name].step is Step.ENDED:
                continue
            began_s = self.now_s if process.began_s is None else process.began_s
            seen = Observation(
                self.now_s - began_s + 0.001, process.done, process.saved, 100.0, GIB, GIB,
                process.ended,
            )  # fmt: skip
            node.agent.observe(name, seen, self.now_s)

    def processes(self, by_s):
        """Advance the running processes."""
        for node in self.nodes.values():
            for name, process in node.disk.items():
                if process.began_s is None or process.ended is not None:
                    continue
                runtime_s = float(process.order.job.environment["runtime"])
                key = job_of_task(name[0])[0], name[1]  # workers of a job share its progress
                self.done[key] = process.done = min(1.0, self.done[key] + by_s / runtime_s)
                if self.now_s >= process.end_by_s:
                    self.end(name, process, pb.Exit(requested=True, description="ended"))
                elif process.done >= 1.0:
                    fails = process.order.job.environment.get("fails") == str(name[1])
                    self.end(name, process, pb.Exit(finished=not fails, description="status"))
                elif self.now_s > node.lease_s + GRACE_S:
                    self.end(name, process, pb.Exit(lost=True, description="lease"))
                elif self.chance(0.003):
                    self.end(name, process, pb.Exit(lost=True, description="its shim died"))

    def end(self, name, process, how):
        process.ended = how
        if how.finished:
            process.saved = 1.0
        self.running[name[0]].discard(name)

    # Time

    def step(self, by_s=1.0):
        self.now_s += by_s
        self.processes(by_s)
        for node in self.nodes.values():
            if self.chance(0.01):
                node.cut_until_s = self.now_s + self.draw.choice((3.0, 15.0, 60.0))
            if self.chance(0.01):
                code, bus = self.draw.choice(CODES), f"bus {self.draw.randrange(len(DEVICES))}"
                node.health.note([xid_signal(bus, code)], self.now_s)
            self.act(node)
        self.control()
        jobs = self.core.state.jobs
        for name in self.known:
            assert name in jobs or name in self.forgotten, f"{name} was lost"

    def at_rest(self):
        """Return whether all jobs have ended, no node has a task, and all nodes are connected."""
        return (
            all(job.stage in ENDED for job in self.core.state.jobs.values())
            and not any(node.disk or self.cut(node) for node in self.nodes.values())
            and not any(self.running.values())
        )

    known: frozenset[str] = frozenset()

    def drain_device(self, *, undo):
        name = self.draw.choice(sorted(self.core.state.nodes))
        device = f"{name}/{self.draw.randrange(len(DEVICES))}"
        self.write(self.core.drain(device, undo=undo, evict=False, now_s=self.now_s))

    def operate(self):
        """Hold, release, requeue or change the priority of a job, if it has not ended."""
        state, caller = self.core.state, Caller("", frozenset({"admin"}))
        names = [self.draw.choice(sorted(state.jobs))]
        how = self.draw.choice(("hold", "release", "requeue", "priority"))
        with suppress(InvalidJobError):
            if how == "requeue":
                self.write(requeue_jobs(state, names, self.now_s, caller))
            elif how == "priority":
                value = self.draw.randrange(-3, 4)
                self.write(change_priority(state, names, value, self.now_s, caller))
            else:
                release = how == "release"
                self.write(hold_jobs(state, names, self.now_s, caller, release=release))

    def release_all(self):
        """Release all jobs that are held."""
        caller = Caller("", frozenset({"admin"}))
        names = [job.job_id for job in self.core.state.jobs.values() if job.stage not in ENDED]
        self.write(hold_jobs(self.core.state, names, self.now_s, caller, release=True))

    def check_replay(self):
        """Check that the journal replays to the state, and so do the rows of a snapshot."""
        replayed, state = ReplayedState(), self.core.state
        for row in self.journal:
            replayed.apply(record_from_json(row))
        rows = replayed.take_changes()
        loaded = ReplayedState.from_rows({key: row for key, row in rows.items() if row is not None})
        for one in (replayed, loaded):
            assert (one.health, one.outages) == (state.health, state.outages)
            assert (one.nodes, one.jobs) == (state.nodes, state.jobs)
            assert one.gates == state.gates

    def submit(self, *jobs):
        while True:
            records, _ = self.core.submit(jobs, self.now_s, self.now_s)
            if self.write(records):
                self.known |= {one.job.job_id for one in jobs}
                return


def jobs_of(draw, count, elastic=False):
    for number in range(count):
        runtime_s = draw.choice((3, 10, 25))
        model = draw.choice(("", f"300 {runtime_s}", f"700 {runtime_s}", f"1000 {runtime_s}"))
        environment = {"runtime": str(runtime_s)}
        if draw.random() < 0.2:
            environment["fails"] = "1"
        gpus = draw.choice((1, 1, 1, 2))
        sizes = {}
        if elastic and draw.random() < 0.7:
            sizes = {"min_gpus": draw.randint(1, gpus), "max_gpus": gpus + draw.randint(0, 3)}
        job = Job(
            f"job {number}", 0.0, model=model, latency_sensitive=draw.random() < 0.3, gpus=gpus,
            **sizes,
        )  # fmt: skip
        yield SubmittedJob(job, ("train",), environment=environment, retries=1, grace_s=GRACE_S)


@pytest.mark.parametrize("policy", ["sharing", "best-fit", "elastic"])
@pytest.mark.parametrize("seed", range(25))
def test_every_job_ends_once_and_never_runs_twice_at_once(policy, seed):
    world = World(seed, policy, max_ended_jobs=2 if seed % 5 == 0 else 1000)
    coming = deque(jobs_of(world.draw, 12, policy == "elastic"))
    again = {one.job.job_id: one for one in coming} if seed % 10 == 0 else {}
    cancelled = set()
    for _ in range(300):
        if not coming and not again and world.at_rest():
            break
        if coming and world.draw.random() < 0.2:
            world.submit(coming.popleft())
        if world.forgotten and again and world.chance(0.05):
            name = world.draw.choice(sorted(world.forgotten))
            if name in again:
                world.submit(again.pop(name))  # a new job with that id
        if world.core.state.jobs and world.chance(0.01):
            victim = world.draw.choice(sorted(world.core.state.jobs))
            cancelled.add(victim)  # even if the client gets no response
            world.write(world.core.cancel([victim], world.now_s, world.now_s))
        if world.core.state.nodes and world.chance(0.02):
            name = world.draw.choice(sorted(world.core.state.nodes))
            undo, evict = world.draw.random() < 0.5, world.draw.random() < 0.5
            world.write(world.core.drain(name, undo=undo, evict=evict, now_s=world.now_s))
        if world.core.state.nodes and world.chance(0.1):
            world.drain_device(undo=world.draw.random() < 0.8)
        if world.core.state.jobs and world.chance(0.1):
            world.operate()
        world.step()
    world.faults = False
    world.release_all()
    for node in world.nodes.values():
        node.cut_until_s = 0.0
    for _ in range(int(LEASE_S)):  # all signals are recorded
        world.step()
    for name in world.core.state.nodes:
        world.write(world.core.drain(name, undo=True, evict=False, now_s=world.now_s))
        for device in range(len(DEVICES)):
            records = world.core.drain(
                f"{name}/{device}", undo=True, evict=False, now_s=world.now_s
            )
            world.write(records)
    world.check_replay()
    while coming:
        world.submit(coming.popleft())
    for _ in range(int(LEASE_S + GRACE_S + END_S + 660)):
        if world.at_rest():
            break
        world.step()

    stages = {name: job.stage for name, job in world.core.state.jobs.items()}
    assert world.forgotten.keys() | stages.keys() == world.known
    for name, stage in (*world.forgotten.items(), *stages.items()):
        expected = {Stage.FINISHED} | ({Stage.CANCELLED} if name in cancelled else set())
        assert stage in expected, (name, stage)
    for _ in range(30):
        world.step()
    assert not any(world.running.values())
    assert not any(node.disk for node in world.nodes.values())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("policy", "jobs"), [("sharing", 10), ("elastic", 5)])
def test_a_controller_can_be_killed_at_every_record(policy, jobs, after):
    number, records = 0, math.inf
    while number < records:
        number += 1
        world = World(7, policy)
        world.faults, world.dies_at, world.dies_after = False, number, after
        for one in jobs_of(world.draw, jobs, policy == "elastic"):
            world.submit(one)
            world.step()
        for _ in range(300):
            if all(job.stage in ENDED for job in world.core.state.jobs.values()):
                break
            world.step()
        assert {job.stage for job in world.core.state.jobs.values()} == {Stage.FINISHED}
        for _ in range(5):
            world.step()
        assert not any(node.disk for node in world.nodes.values())
        records = len(world.journal)
