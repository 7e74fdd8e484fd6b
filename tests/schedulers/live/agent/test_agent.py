"""An agent with real processes, and a controller whose part a test plays."""

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
    """Answers each report with the same orders."""

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
    """An agent on a state folder, and what it hears of a controller."""

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
        """From its begin on: orders are the answer to a report, anything else is waited for."""

        async def living() -> None:
            agent = self.agent
            await asyncio.to_thread(agent.adopt_tasks)
            working = asyncio.create_task(agent.run())
            ends_s = asyncio.get_running_loop().time() + within_s
            for step in steps:
                if isinstance(step, pb.NodeCommands):
                    step.report_number = (await anext(agent.reports())).number
                    agent.receive(step)
                    continue
                while not step():
                    assert not working.done(), working.exception()
                    assert asyncio.get_running_loop().time() < ends_s
                    await asyncio.sleep(0.02)
            working.cancel()

        asyncio.run(living())

    def folder(self, name: str) -> TaskFolder:
        return TaskFolder(self.state / TASKS / name)

    def runs(self, name: str) -> bool:
        task = self.agent.core.tasks.get((name, 1))
        return task is not None and task.observation is not None and task.observation.exit is None

    def dies(self) -> None:
        """Another agent may have its folder."""
        os.close(self.agent._lock)

    def ended(self, name: str, attempt: int = 1) -> bool:
        task = self.agent.core.tasks.get((name, attempt))
        return task is not None and task.step is Step.ENDED


def said_by(played: Played) -> pb.NodeReport:
    """What its agent reports now."""

    async def first() -> pb.NodeReport:
        return await anext(played.agent.reports())

    return asyncio.run(first())


@pytest.fixture
def state(node: Node) -> Path:
    return node.state


def test_a_job_does_not_go_on_from_a_checkpoint_of_an_earlier_one_of_its_name(state):
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


def test_a_controller_of_another_cluster_is_not_obeyed_while_there_are_tasks(
    state, caplog, monkeypatch
):
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
    assert said_by(played).cluster_id == "ours"  # a controller need not try
    played.dies()

    played = Played(state)
    ours = orders(version=9, cluster_id="ours", lease_s=1e6)  # which knows of no job
    played.lives(ours, lambda: played.ended("job"))
    assert (read_lease(state) or 0.0) > lease_s
    wanted = played.folder("job.1").desired_state()
    assert wanted is not None
    assert wanted.end == End(True, "the controller does not list it any more")
    played.dies()

    played = Played(state)
    played.lives(orders(order("other", SLEEPS), cluster_id="theirs"), lambda: played.runs("other"))


def test_a_node_is_another_clusters_once_its_tasks_are_over(state):
    played = Played(state)
    last = order("last", "import time; time.sleep(1)")
    theirs = orders(order("first", "print('theirs')"), version=7, cluster_id="theirs")

    played.lives(
        orders(last, cluster_id="ours"), lambda: played.runs("last"), theirs,
        lambda: played.ended("last"), pb.NodeCommands(version=7, unchanged=True),
        lambda: played.ended("first"),
    )  # fmt: skip
    assert (state / "agent.cluster").read_text() == "theirs"
    assert said_by(played).cluster_id == ""  # it has no task of anybody's


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


def test_n6_a_process_that_makes_capacity_for_a_late_one_saves_ends_and_goes_on_after_it(state):
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


def test_reports_go_with_changes_and_not_with_each_look(state):
    played = Played(state)
    agent = played.agent

    async def count() -> tuple[int, float]:
        """Reports while a task runs, of which looks are each half a second, and seconds."""
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
    assert 2 <= reports <= ran_s + 3  # one a second, and those that it began


@pytest.mark.parametrize("damaged", ["order", "job", "allocations", "spec"])
def test_a_running_task_that_cannot_be_read_is_ended_and_lost_only_then(state, damaged):
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


def test_the_log_of_a_task_that_has_not_begun_has_not_ended(state, monkeypatch):
    monkeypatch.setattr(agent_module, "launch", lambda task: False)
    played = Played(state)
    wanted = pb.LogRequest(task=pb.TaskName(job_id="job", attempt=1))
    agent, name = played.agent, ("job", 1)

    def ended() -> bool:
        return agent.log_part(wanted, 1000).ended

    assert ended()  # nobody has told of it
    unleased, leased = (orders(order("job", SLEEPS), lease_s=s) for s in (1e-6, 60.0))
    played.lives(
        unleased, lambda: name in agent.core.tasks, lambda: not ended(),
        leased, lambda: name in agent._processes, lambda: not ended(),
    )  # fmt: skip


def test_orders_of_many_megabytes_are_heard(state):
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
            ends_s = asyncio.get_running_loop().time() + 60.0
            while not played.ended("job") and asyncio.get_running_loop().time() < ends_s:
                await asyncio.sleep(0.05)
            serving.cancel()
            await serving

    asyncio.run(until_it_ended())
    assert played.ended("job")


def test_a_job_of_several_gpus_is_given_all_of_them(state):
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
    # There is one part for all of them: of none it can take more than it is given.
    assert folder.spec().memory_bytes == 20 * GIB


def test_a_task_that_cannot_be_made_where_others_can_fails_and_the_node_goes_on(state, monkeypatch):
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
    assert played.agent._problem == ""


def test_from_a_node_without_capacity_tasks_go_back_and_it_says_why(state, monkeypatch):
    monkeypatch.setattr(agent_module, "PROBE_S", 0.2)
    checkpoints = state / "checkpoints"
    checkpoints.write_text("no folder can be here")
    played = Played(state)
    said: list[str] = []

    def makes_capacity() -> bool:
        said.append(played.agent._problem)
        checkpoints.unlink()
        return True

    played.lives(
        orders(order("job", "pass")),
        lambda: played.ended("job"),
        makes_capacity,
        lambda: played.agent._problem == "",
    )
    assert said[0].endswith("checkpoints (File exists); free space there")
    over = played.agent.core.tasks["job", 1].observation
    assert over is not None
    assert over.exit is not None
    assert over.exit.requested


def test_what_an_earlier_agent_made_begins_only_if_it_is_still_wanted(state, monkeypatch):
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
    """As a shim does that is killed while the disk has no room for what it has to note first."""
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
def test_a_job_whose_shim_is_stopped_ends_after_its_lease(state, has_restarted):
    """Also by an agent that was started again meanwhile."""
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


def test_a_lease_is_renewed_once_the_orders_that_came_with_it_are_obeyed(tmp_path):
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
    lease.extend(15.0)  # it came with nothing new; the newest answer holds, also if it is shorter
    assert (lease.until_s, read_lease(tmp_path)) == (15.0, 15.0)


def test_from_a_node_where_no_process_can_begin_tasks_go_back_and_it_says_why(state, monkeypatch):
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
        problems.append(played.agent._problem)
        return not played.agent._problem

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


def test_tasks_that_are_cancelled_where_no_process_can_begin_are_over_at_once(state, monkeypatch):
    """Also those that would have been launched after one that could not."""

    def refuses(task):
        raise TaskFolderError("no shim")

    monkeypatch.setattr(agent_module, "launch", refuses)
    played, third = Played(state), Allocation(0, 300, GIB // 4)
    names = ["one", "two", "three"]
    ends = [order(name, "pass", third, end_reason="cancelled") for name in names[1:]]
    played.lives(
        orders(*(order(name, "pass", third) for name in names)),
        lambda: all((name, 1) in played.agent._processes for name in names),
        orders(order("one", "pass", third), *ends, version=2),
        lambda: played.ended("two") and played.ended("three"),
    )
    assert not played.folder("two.1").path.exists()
    assert not played.ended("one")
    assert played.agent._problem == ""


def test_an_agent_that_cannot_work_any_more_ends(state, monkeypatch):
    async def fails() -> None:
        raise OSError(24, "Too many open files")

    played = Played(state)
    monkeypatch.setattr(played.agent, "run", fails)
    played.agent.orders_received = 1  # as of one that was let in
    with controller_that_says(orders()) as target, pytest.raises(OSError, match="Too many"):
        asyncio.run(asyncio.wait_for(serve_node(played.agent, target, Credentials), 60.0))


@pytest.mark.parametrize("written", ["", "\n"])
def test_an_agent_whose_name_was_lost_with_the_power_has_another(state, written):
    (state / "agent.id").write_text(written)
    played = Played(state)
    assert len(played.agent._agent_id) == 32
    played.dies()
    assert Played(state).agent._agent_id == played.agent._agent_id


@pytest.mark.parametrize("written", [b"\xff\xfe of a broken disk", b"half an i"])
def test_an_agent_whose_name_is_damaged_says_where_and_what_to_do(state, written):
    (state / "agent.id").write_bytes(written)
    with pytest.raises(ConfigError, match=r"agent\.id: damaged.* remove it"):
        Played(state)


class Locks(pb_grpc.NodeServiceServicer):
    """Lets an agent in, if it may, and then knows no token of it for a while."""

    def __init__(self, *lets_in):
        self._lets_in = list(lets_in)

    def Attach(self, request_iterator, context):
        if not self._lets_in.pop(0):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no such token")
        report = next(request_iterator)
        yield orders(report_number=report.number)


def test_an_agent_that_was_let_in_is_not_sent_away_by_a_token_that_is_not_known(state):
    def outlives(*lets_in) -> bool:
        """Whether it asks again until it has seen all of it."""
        answers = Locks(*lets_in)
        stumbles = [FileNotFoundError("somebody is writing it")]

        def credentials() -> Credentials:
            if played.agent.orders_received and stumbles:
                raise stumbles.pop()
            return Credentials()

        async def served(target: str) -> bool:
            serving = asyncio.create_task(serve_node(played.agent, target, credentials))
            while answers._lets_in and not serving.done():
                await asyncio.sleep(0.05)
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
