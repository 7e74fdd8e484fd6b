"""Agent with real processes and a simulated controller."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from presage.errors import ConfigError, RefusedAgentError, TaskFolderError
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.live.agent import agent as agent_module
from presage.schedulers.live.agent.agent import Agent
from presage.schedulers.live.agent.agent_options import AgentOptions
from presage.schedulers.live.agent.connection.controller_connection import serve_node
from presage.schedulers.live.agent.connection.lease import read_lease
from presage.schedulers.live.agent.connection.lease_renewal import LeaseRenewal
from presage.schedulers.live.agent.node_task import Step
from presage.schedulers.live.agent.slot import Slot
from presage.schedulers.live.agent.tasks.task import End
from presage.schedulers.live.agent.tasks.task_folder import TASKS, TaskFolder
from presage.schedulers.live.agent.tasks.task_process import launch
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.live.protocol.wire import write_allocations, write_job, write_prediction
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.v1 import cluster_pb2_grpc as pb_grpc
from presage.serving.client.credentials import Credentials
from presage.serving.server.log import LOGGER
from tests.schedulers.live.agent.node import SLEEPS, SOURCE, Node, alive, ended, job_pid, shim_pid
from tests.support.waiting import async_wait_until

GIB = 2**30
CPU = Slot("cpu-1", 4 * GIB, cpus=(0,))
SHOWS_GPUS = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"


def order(name, code, *allocations, **values):
    allocations = allocations or (Allocation(0, 1000, GIB),)
    job = Job(name, 0.0, gpus=len(allocations), memory_bytes=GIB)
    submitted = SubmittedJob(job, (sys.executable, "-c", code), grace_s=5.0)
    return pb.TaskCommand(
        job=write_job(submitted), attempt=1, allocations=write_allocations(allocations),
        **values,
    )  # fmt: skip


def orders(*tasks, version=1, lease_s=60.0, **values):
    return pb.NodeCommands(version=version, tasks=tasks, lease_s=lease_s, **values)


class Says(pb_grpc.NodeServiceServicer):
    """Node service that answers each report with the same commands."""

    def __init__(self, answer):
        self._answer = answer

    def Attach(self, request_iterator, context):
        for report in request_iterator:
            self._answer.report_number = report.number
            yield self._answer


@contextmanager
def controller_that_says(answer):
    server = grpc.server(ThreadPoolExecutor(4))
    says = Says(answer) if isinstance(answer, pb.NodeCommands) else answer
    pb_grpc.add_NodeServiceServicer_to_server(says, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


class Played:
    """Agent on a state folder that receives commands from the test."""

    def __init__(self, state: Path, *slots: Slot, allow_root_jobs: bool = True) -> None:
        self.state = state
        self.agent = Agent(
            AgentOptions(
                "a",
                slots or (CPU,),
                state,
                state / "checkpoints",
                allow_root_jobs=allow_root_jobs,
            )
        )

    def lives(self, *steps, within_s: float = 60.0):
        """Run the agent: a step of commands answers a report, any other is awaited."""

        async def living() -> None:
            agent = self.agent
            await asyncio.to_thread(agent.adopt_tasks)
            working = asyncio.create_task(agent.run())
            for step in steps:
                if isinstance(step, pb.NodeCommands):
                    step.report_number = (await anext(agent.reports())).number
                    agent.receive(step)
                else:
                    await async_wait_until(lambda: working.done() or step(), within_s)  # noqa: B023
                    assert not working.done(), working.exception()
            working.cancel()

        asyncio.run(living())

    def folder(self, name: str) -> TaskFolder:
        return TaskFolder(self.state / TASKS / name)

    def runs(self, name: str) -> bool:
        task = self.agent.core.tasks.get((name, 1))
        return task is not None and task.observation is not None and task.observation.exit is None

    def dies(self) -> None:
        """Release the state folder for another agent."""
        self.agent.close()

    def ended(self, name: str, attempt: int = 1) -> bool:
        task = self.agent.core.tasks.get((name, attempt))
        return task is not None and task.step is Step.ENDED


def said_by(played: Played) -> pb.NodeReport:
    """Return the current report of the agent."""

    async def first() -> pb.NodeReport:
        return await anext(played.agent.reports())

    return asyncio.run(first())


@pytest.fixture
def state(node: Node) -> Path:
    return node.state


def test_a_job_does_not_resume_from_a_checkpoint_of_an_earlier_job_with_its_id(state):
    code = (
        "from presage import progress\n"
        "run = progress.begin(10)\n"
        "print(run.first, run.checkpoint_folder.name)\n"
        "run.saved(7)\n"
    )
    said = []
    for attempt, submission in enumerate(["ab-1", "ab-2", "ab-1", ""], 1):
        played = Played(state)
        one = order("a/job", code, submission_id=submission)
        one.attempt = attempt
        one.job.environment["PYTHONPATH"] = SOURCE
        played.lives(orders(one), lambda: played.ended("a/job", attempt))  # noqa: B023 called now
        played.dies()
        said.append(played.folder(f"a%2fjob.{attempt}").log.read_text().split())

    assert said == [
        ["0", "a%2fjob.ab-1"], ["0", "a%2fjob.ab-2"], ["7", "a%2fjob.ab-1"], ["0", "a%2fjob"]
    ]  # fmt: skip


def test_commands_of_another_cluster_are_ignored_while_tasks_run(state, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger(LOGGER), "propagate", True)
    played = Played(state)
    job = order("job", SLEEPS)
    played.lives(orders(job, cluster_id="ours"), lambda: played.runs("job"))
    played.dies()
    lease_s = read_lease(state) or 0.0

    played = Played(state)
    theirs = orders(version=7, cluster_id="theirs", lease_s=1e6)
    again = pb.NodeCommands(version=7, unchanged=True)
    played.lives(theirs, again, theirs, again, lambda: played.runs("job"))
    assert read_lease(state) == lease_s
    assert caplog.text.count("orders of another cluster are ignored") == 1
    assert said_by(played).cluster_id == "ours"  # so that another controller can skip it
    played.dies()

    played = Played(state)
    ours = orders(version=9, cluster_id="ours", lease_s=1e6)  # lists no job
    played.lives(ours, lambda: played.ended("job"))
    assert (read_lease(state) or 0.0) > lease_s
    wanted = played.folder("job.1").desired_state()
    assert wanted is not None
    assert wanted.end == End(True, "the controller does not list it any more")
    played.dies()

    played = Played(state)
    played.lives(orders(order("other", SLEEPS), cluster_id="theirs"), lambda: played.runs("other"))


def test_a_node_joins_another_cluster_after_its_tasks_have_ended(state):
    played = Played(state)
    last = order("last", "import time; time.sleep(1)")
    theirs = orders(order("first", "print('theirs')"), version=7, cluster_id="theirs")

    played.lives(
        orders(last, cluster_id="ours"), lambda: played.runs("last"), theirs,
        lambda: played.ended("last"), pb.NodeCommands(version=7, unchanged=True),
        lambda: played.ended("first"),
    )  # fmt: skip
    assert (state / "agent.cluster").read_text() == "theirs"
    assert said_by(played).cluster_id == ""  # it has no tasks


STEPS = """
import time
from presage import progress
from presage.schedulers.live import job_progress as progress
run = progress.begin({iterations})
print("from", run.first, flush=True)
for done in range(run.first + 1, {iterations} + 1):
    time.sleep(0.05)
    run.step(done)
    if run.checkpoint_requested:
        run.saved(done)
"""


def test_n6_a_task_evicted_for_a_violated_slo_saves_ends_and_resumes_later(state):
    half, told = Allocation(0, 500, GIB), RuntimePrediction(1.5, 500, GIB, high_s=1.8)
    urgent = order("urgent", STEPS.format(iterations=350), half)
    urgent.job.latency_sensitive = True
    urgent.predictions.append(write_prediction("cpu-1", told))
    other, again = (order("other", STEPS.format(iterations=5000), half) for _ in range(2))
    for one in (other, again):
        one.predictions.append(
            write_prediction("cpu-1", told._replace(runtime_s=250.0, high_s=300.0))
        )
    for one in (urgent, other, again):
        one.job.environment["PYTHONPATH"] = SOURCE
    again.attempt = 2
    sharing = pb.Sharing(step_milli=100, least_milli=300, check_s=1.0, overcommit=1.0)
    played = Played(state)

    def goes_on() -> bool:
        log = played.folder("other.2").log
        return log.exists() and log.read_text().startswith("from ")

    played.lives(
        orders(urgent, other, sharing=sharing),
        lambda: played.runs("urgent") and played.runs("other"),
        lambda: played.ended("other"),
        lambda: played.ended("urgent"),
        orders(urgent, again, version=2, sharing=sharing),
        goes_on,
    )
    first, had = played.agent.core.tasks["other", 1], played.agent.core.tasks["urgent", 1]
    assert first.observation is not None
    assert first.observation.exit is not None
    assert first.observation.exit.requested
    assert first.observation.saved > 0
    assert had.allocations[0].compute_milli == 1000
    assert int(played.folder("other.2").log.read_text().split()[1]) == round(
        first.observation.saved * 5000
    )


def test_reports_are_sent_on_changes_and_not_at_each_check(state):
    played = Played(state)
    agent = played.agent

    async def count() -> tuple[int, float]:
        """Return the number of reports while a task runs, checked twice a second, and its time."""
        await asyncio.to_thread(agent.adopt_tasks)
        working = asyncio.create_task(agent.run())
        counts = (
            "import time\n"
            "from presage import progress\n"
            "run = progress.begin(60)\n"
            "for done in range(1, 61): time.sleep(0.1); run.step(done)\n"
        )
        one = order("job", counts)
        one.job.environment["PYTHONPATH"] = SOURCE
        phases: list[int] = []
        async for report in agent.reports():
            if not phases:
                agent.receive(orders(one, version=3, report_number=report.number))
            phases.append(report.tasks[0].phase if report.tasks else 0)
            if phases[-1] == pb.TASK_ENDED:
                break
        working.cancel()
        assert report.tasks[0].done == 1.0
        return phases.count(pb.TASK_RUNNING), report.tasks[0].ran_s

    reports, ran_s = asyncio.run(asyncio.wait_for(count(), 60.0))
    assert ran_s >= 6.0
    assert 2 <= reports <= ran_s + 3  # one per second, and those at its start


@pytest.mark.parametrize("damaged", ["order", "job", "allocations", "spec"])
def test_a_running_task_with_a_damaged_spec_is_lost_only_after_its_end(state, damaged):
    played = Played(state)
    one = order("job", SLEEPS)
    played.lives(orders(one), lambda: played.runs("job"))
    played.dies()
    folder = played.folder("job.1")
    path = folder.path / "spec.json"
    spec = json.loads(path.read_text())
    if damaged == "order":
        spec["agent_data"]["command"]["no such field"] = 1
    elif damaged == "job":
        spec["agent_data"]["command"]["job"]["job_id"] = ""
    elif damaged == "allocations":
        spec["agent_data"]["allocations"] = [[0, "all", 1]]
        folder.desired_state_file.unlink()
    path.write_text("{" if damaged == "spec" else json.dumps(spec))
    held = []

    def lost() -> bool:
        held.append(folder.holder())
        return played.ended("job")

    played = Played(state)
    played.lives(orders(one), lost)
    assert held[-1] is None
    (told,) = played.agent.core.report()
    assert told.exit.lost
    assert ended(folder).reason == "ended"


def test_the_log_of_a_task_that_has_not_started_is_not_complete(state, monkeypatch):
    monkeypatch.setattr(agent_module, "launch", lambda task: False)
    played = Played(state)
    wanted = pb.LogRequest(task=pb.TaskName(job_id="job", attempt=1))
    agent, name = played.agent, ("job", 1)

    def ended() -> bool:
        return agent.log_part(wanted, 1000).ended

    assert ended()  # the task is unknown
    unleased, leased = (orders(order("job", SLEEPS), lease_s=s) for s in (1e-6, 60.0))
    played.lives(
        unleased, lambda: name in agent.core.tasks, lambda: not ended(),
        leased, lambda: name in agent.processes, lambda: not ended(),
    )  # fmt: skip


def test_commands_of_many_megabytes_are_received(state):
    played = Played(state)
    forget = [pb.TaskName(job_id="x" * 1000, attempt=number) for number in range(6000)]
    answer = orders(order("job", "print('here')"), forget=forget)
    assert answer.ByteSize() > 4 * 2**20

    async def served(target):
        with suppress(asyncio.CancelledError):
            await serve_node(played.agent, target, Credentials)

    async def until_it_ended():
        with controller_that_says(answer) as target:
            serving = asyncio.create_task(served(target))
            await async_wait_until(lambda: played.ended("job"))
            serving.cancel()
            await serving

    asyncio.run(until_it_ended())


def test_a_job_of_several_gpus_sees_all_of_them(state):
    h100, other_h100 = (Slot("h100", 80 * GIB, cuda=number) for number in (4, 6))
    played = Played(state, h100, Slot("a100", 40 * GIB, cuda=1), other_h100)
    allocations = [
        Allocation(0, 1000, 20 * GIB),
        Allocation(1, 1000, 20 * GIB),
        Allocation(2, 1000, 20 * GIB),
    ]
    played.lives(orders(order("gang", SHOWS_GPUS, *allocations)), lambda: played.ended("gang"))

    folder = played.folder("gang.1")
    assert folder.log.read_text() == "4,1,6\n"
    # One limit applies to all devices: the smallest allocation.
    assert folder.spec().memory_bytes == 20 * GIB


def test_one_task_that_cannot_be_created_fails_and_the_node_continues(state, monkeypatch):
    monkeypatch.setattr(agent_module, "TASK_FAULT_S", 0.5)
    (state / "checkpoints").mkdir()
    (state / "checkpoints" / "job").write_text("a file where its folder would be")
    played = Played(state)
    half = Allocation(0, 500, GIB)
    both = orders(order("job", "pass", half), order("other", "pass", half))
    played.lives(both, lambda: played.ended("job") and played.ended("other"))
    over = played.agent.core.tasks["job", 1].observation
    assert over is not None
    assert over.exit is not None
    assert not (over.exit.lost or over.exit.requested or over.exit.finished)
    assert "checkpoint folder" in over.exit.description
    assert played.agent.problem == ""


def test_a_node_without_disk_space_returns_tasks_with_a_reason(state, monkeypatch):
    monkeypatch.setattr(agent_module, "PROBE_S", 0.2)
    checkpoints = state / "checkpoints"
    checkpoints.write_text("no folder can be here")
    played = Played(state)
    said: list[str] = []

    def makes_capacity() -> bool:
        said.append(played.agent.problem)
        checkpoints.unlink()
        return True

    played.lives(
        orders(order("job", "pass")),
        lambda: played.ended("job"),
        makes_capacity,
        lambda: played.agent.problem == "",
    )
    assert said[0].endswith("checkpoints (File exists); free space there")
    over = played.agent.core.tasks["job", 1].observation
    assert over is not None
    assert over.exit is not None
    assert over.exit.requested


def test_a_task_created_by_an_earlier_agent_starts_only_if_it_is_still_desired(state, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(agent_module, "launch", lambda task: False)
        first = Played(state)
        first.lives(orders(order("job", "print('up')")), (state / TASKS / "job.1").exists)
        first.dies()
    played, ends_s = Played(state), time.monotonic() + 1.0
    played.lives(
        lambda: time.monotonic() > ends_s,
        orders(version=2),
        lambda: played.ended("job"),
    )
    assert not played.folder("job.1").started


def test_a_task_whose_shim_dies_before_it_starts_the_job_is_launched_again(state, monkeypatch):
    """A shim dies like this when it is killed before it can write its state to a full disk."""
    holds = (
        "import sys, time; from pathlib import Path;"
        "from presage.schedulers.live.agent.tasks.task_folder import TaskFolder;"
        "TaskFolder(Path(sys.argv[1])).hold(); print('held', flush=True); time.sleep(600)"
    )
    shims: list[subprocess.Popen[bytes]] = []

    def holds_only(task):
        shim = subprocess.Popen(
            [sys.executable, "-c", holds, task.folder.path],
            env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE,
        )  # fmt: skip
        shims.append(shim)
        assert shim.stdout is not None
        return shim.stdout.readline() == b"held\n"

    monkeypatch.setattr(agent_module, "launch", holds_only)
    played = Played(state)

    def dies() -> bool:
        if played.runs("job"):
            monkeypatch.setattr(agent_module, "launch", launch)
            shims[0].kill()
            shims[0].communicate()
        return bool(shims) and shims[0].returncode is not None

    played.lives(orders(order("job", "pass")), dies, lambda: played.ended("job"))
    over = played.agent.core.tasks["job", 1].observation
    assert over is not None
    assert over.exit is not None
    assert over.exit.finished


@pytest.mark.parametrize("has_restarted", [False, True])
def test_a_job_with_a_stopped_shim_ends_after_its_lease(state, has_restarted):
    """A restarted agent ends it as well."""
    job = order("job", SLEEPS)
    job.job.grace_s = 0.1
    played = Played(state)
    pids: list[int] = []

    def stops() -> bool:
        if not played.runs("job"):
            return False
        pids.append(job_pid(played.folder("job.1")))
        os.kill(shim_pid(played.folder("job.1")), signal.SIGSTOP)
        return True

    steps = [orders(job, lease_s=1.5), stops]
    if has_restarted:
        played.lives(*steps)
        played.dies()
        played, steps = Played(state), []
    played.lives(*steps, lambda: played.ended("job"))
    assert not alive(pids[0])
    over = played.agent.core.tasks["job", 1].observation
    assert over is not None
    assert over.exit is not None
    assert over.exit.lost


def test_a_lease_is_renewed_after_the_commands_received_with_it_are_applied(tmp_path):
    lease = LeaseRenewal(tmp_path)
    first = lease.count_orders()
    lease.extend(10.0)
    assert (lease.until_s, read_lease(tmp_path)) == (0.0, None)
    second = lease.count_orders()
    lease.extend(20.0)
    lease.apply(first)
    assert (lease.until_s, read_lease(tmp_path)) == (10.0, 10.0)
    lease.apply(second)
    assert read_lease(tmp_path) == 20.0
    lease.extend(15.0)  # without new commands; the newest lease applies even if it is shorter
    assert (lease.until_s, read_lease(tmp_path)) == (15.0, 15.0)


def test_a_node_that_cannot_start_processes_returns_tasks_with_a_reason(state, monkeypatch):
    def refuses(task):
        raise TaskFolderError("no shim")

    monkeypatch.setattr(agent_module, "TASK_FAULT_S", 0.5)
    monkeypatch.setattr(agent_module, "PROBE_S", 0.2)
    can = ["no process can be made here", "no process can be made here", ""]
    monkeypatch.setattr(agent_module, "why_cannot_launch", lambda: can.pop(0))
    monkeypatch.setattr(agent_module, "launch", refuses)
    played = Played(state)
    problems: list[str] = []

    def goes_back() -> bool:
        if played.ended("job"):
            monkeypatch.setattr(agent_module, "launch", launch)
        return played.ended("job")

    def may_have_others() -> bool:
        problems.append(played.agent.problem)
        return not played.agent.problem

    played.lives(
        orders(order("job", "pass")),
        goes_back,
        may_have_others,
        orders(order("another", "pass"), version=2),
        lambda: played.ended("another"),
    )
    assert {"no shim", "no process can be made here"} <= {*problems}
    over = played.agent.core.tasks["job", 1].observation
    assert over is not None
    assert over.exit is not None
    assert over.exit.requested
    assert not played.folder("job.1").path.exists()
    assert (played.folder("another.1").path / "exit.json").exists()


def test_cancelled_tasks_end_at_once_on_a_node_that_cannot_start_processes(state, monkeypatch):
    """Tasks queued behind one that cannot be launched are ended as well."""

    def refuses(task):
        raise TaskFolderError("no shim")

    monkeypatch.setattr(agent_module, "launch", refuses)
    played, third = Played(state), Allocation(0, 300, GIB // 4)
    names = ["one", "two", "three"]
    ends = [order(name, "pass", third, end_reason="cancelled") for name in names[1:]]
    played.lives(
        orders(*(order(name, "pass", third) for name in names)),
        lambda: all((name, 1) in played.agent.processes for name in names),
        orders(order("one", "pass", third), *ends, version=2),
        lambda: played.ended("two") and played.ended("three"),
    )
    assert not played.folder("two.1").path.exists()
    assert not played.ended("one")
    assert played.agent.problem == ""


def test_an_agent_with_a_fatal_error_ends(state, monkeypatch):
    async def fails() -> None:
        raise OSError(24, "Too many open files")

    played = Played(state)
    monkeypatch.setattr(played.agent, "run", fails)
    played.agent.orders_received = 1  # as of an accepted agent
    with controller_that_says(orders()) as target, pytest.raises(OSError, match="Too many"):
        asyncio.run(asyncio.wait_for(serve_node(played.agent, target, Credentials), 60.0))


@pytest.mark.parametrize("written", ["", "\n"])
def test_an_agent_with_an_empty_id_file_gets_a_new_id(state, written):
    (state / "agent.id").write_text(written)
    played = Played(state)
    assert len(played.agent.agent_id) == 32
    played.dies()
    assert Played(state).agent.agent_id == played.agent.agent_id


@pytest.mark.parametrize("written", [b"\xff\xfe of a broken disk", b"half an i"])
def test_the_error_of_a_damaged_agent_id_names_the_file_and_the_fix(state, written):
    (state / "agent.id").write_bytes(written)
    with pytest.raises(ConfigError, match=r"agent\.id: damaged.* remove it"):
        Played(state)


class Locks(pb_grpc.NodeServiceServicer):
    """Node service that accepts or rejects the token of an agent at each attachment."""

    def __init__(self, *lets_in):
        self.lets_in = list(lets_in)

    def Attach(self, request_iterator, context):
        if not self.lets_in.pop(0):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no such token")
        report = next(request_iterator)
        yield orders(report_number=report.number)


def test_an_agent_that_was_once_accepted_retries_after_its_token_is_rejected(state):
    def outlives(*lets_in) -> bool:
        """Return whether the agent attaches until all responses are used."""
        answers = Locks(*lets_in)
        stumbles = [FileNotFoundError("somebody is writing it")]

        def credentials() -> Credentials:
            if played.agent.orders_received and stumbles:
                raise stumbles.pop()
            return Credentials()

        async def served(target: str) -> bool:
            serving = asyncio.create_task(serve_node(played.agent, target, credentials))
            await async_wait_until(lambda: not answers.lets_in or serving.done())
            outlived = not serving.done()
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
            return outlived

        played = Played(state)
        with controller_that_says(answers) as target:
            try:
                return asyncio.run(asyncio.wait_for(served(target), 60.0))
            finally:
                played.dies()

    assert outlives(True, False, False, True)
    with pytest.raises(RefusedAgentError, match="no such token"):
        outlives(False, False, False, True)
