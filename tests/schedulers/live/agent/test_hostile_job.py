"""The agent and other jobs continue whatever a job does to its files."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.live.agent import agent as agent_module
from presage.schedulers.live.agent.connection.lease import boottime_s, read_lease
from presage.schedulers.live.agent.isolation.safe_folders import remove_tree
from presage.schedulers.live.agent.slot import Slot
from presage.schedulers.live.agent.tasks import log_archive
from presage.schedulers.live.agent.tasks.json_file import read_json, write_json
from presage.schedulers.live.agent.tasks.log_archive import archive_log, archived_log
from presage.schedulers.live.agent.tasks.log_file import (
    limit_log_size,
    previous_log,
    read_log,
)
from presage.schedulers.live.agent.tasks.task_process import remove, remove_leftovers
from presage.schedulers.live.job_progress import read_progress
from presage.system.files.atomic_file import replace_text
from presage.system.files.regular_file import open_regular, read_small
from tests.schedulers.live.agent.accounts import ALICE, PYTHON, needs_accounts, reachable_node
from tests.schedulers.live.agent.hostile_job import deep, leased, locked, makers
from tests.schedulers.live.agent.node import SLEEPS, SOURCE, Node
from tests.schedulers.live.agent.test_agent import CPU, GIB, Played, order, orders
from tests.support.waiting import async_stays_true, async_wait_until, wait_until

PROGRAM = Path(__file__).with_name("hostile_job.py")
SEEDS = [int(word) for word in os.environ.get("PRESAGE_TEST_SEEDS", "1,2").split(",")]
MAX_LOOK_S = 25.0  # longest check of the tasks: less than the agent allows
MORE_BYTES = 200 * 2**20


@pytest.fixture(autouse=True)
def no_deep_trees(tmp_path: Path) -> Iterator[None]:
    """Remove deep folder trees after a test, which pytest cannot do."""
    yield
    assert remove_tree(tmp_path, 120.0)


@pytest.fixture
def open_node() -> Iterator[Node]:
    """Return a node in a folder that other accounts can traverse."""
    with reachable_node() as node:
        yield node


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("untouched")
    return path


# The openers --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(makers(""))))
def test_any_object_in_place_of_a_file_is_handled_without_blocking(tmp_path, victim, number):
    path = tmp_path / "file"
    try:
        makers(str(victim))[number](str(path))
    except PermissionError as error:
        pytest.skip(f"only root can make it: {error}")

    assert read_progress(path) is None
    said = read_json(path)
    assert said is None or isinstance(said, dict)
    for opens in (read_small, lambda path, most: os.close(open_regular(path, os.O_WRONLY))):
        began_s = time.monotonic()
        try:
            opens(path, 4096)
        except OSError:
            assert time.monotonic() - began_s < MAX_LOOK_S
    replace_text(path, "{}", displace_folder=True)
    assert read_json(path) == {}
    assert victim.read_text() == "untouched"


def test_only_a_regular_file_is_truncated(tmp_path, victim):
    (tmp_path / "link").symlink_to(victim)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC

    with pytest.raises(OSError, match="symbolic"):
        open_regular(tmp_path / "link", flags)

    assert victim.read_text() == "untouched"
    os.close(open_regular(victim, flags))
    assert victim.read_text() == ""


def test_a_file_lease_held_by_a_job_does_not_block(tmp_path):
    leased(str(tmp_path / "file"))

    with pytest.raises(BlockingIOError):
        open_regular(tmp_path / "file")


def test_the_target_of_a_symbolic_link_in_place_of_a_log_is_not_truncated(tmp_path, victim):
    log = tmp_path / "log"
    log.symlink_to(victim)
    limit_log_size(log, 1)
    log.unlink()
    log.write_text("x" * 100)
    (tmp_path / "log.old").symlink_to(victim)
    (tmp_path / "log.first").symlink_to(victim)
    limit_log_size(log, 1)

    assert victim.read_text() == "untouched"
    assert log.stat().st_size == 0
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        read_log(tmp_path / "fifo", 0, 10)


def test_archiving_keeps_a_bounded_part_of_a_log_of_terabytes(node):
    folder = node.make(SLEEPS).folder
    os.truncate(folder.log, 2**40)

    archive_log(folder)

    kept = archived_log(node.state, folder.name)
    assert kept.stat().st_size == 64 * 2**20
    assert read_log(kept, -5, 10).offset == 2**40 - 5


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a log to another account")
def test_an_archived_log_no_longer_belongs_to_the_account_of_the_job(node):
    folder = node.make(SLEEPS).folder
    folder.log.write_text("said\n")
    os.chown(folder.log, 65534, 65534)
    with folder.log.open("ab", buffering=0) as held:  # like another process of that account
        archive_log(folder)
        held.truncate(2**40)

    kept = archived_log(node.state, folder.name)
    assert kept.read_bytes() == b"said\n"
    assert kept.stat().st_uid == 0


def test_a_log_that_grows_while_it_is_archived_is_bounded(node, monkeypatch):
    folder = node.make(SLEEPS).folder
    previous_log(folder.log).write_bytes(b"before\n")
    monkeypatch.setattr(log_archive, "limit_log_size", lambda *_: None)  # it has grown meanwhile
    monkeypatch.setattr(log_archive, "LOG_BYTES", 100)
    os.truncate(folder.log, 10_000)

    archive_log(folder)

    assert archived_log(node.state, folder.name).stat().st_size == 107


def test_replacing_a_file_displaces_a_folder_of_its_name(tmp_path):
    (tmp_path / "exit.json").mkdir()
    (tmp_path / "exit.json" / "full").touch()

    write_json(tmp_path / "exit.json", {"code": 0}, durable=True)

    assert read_json(tmp_path / "exit.json") == {"code": 0}
    assert (tmp_path / "exit.json").stat().st_mode & 0o777 == 0o600


# Removal ------------------------------------------------------------------------------------


def test_a_tree_of_any_depth_is_removed_but_not_the_targets_of_its_links(node, tmp_path, victim):
    folder = node.make(SLEEPS).folder
    for number in range(3):
        deep(str(folder.job_folder / f"deep{number}"))
    locked(str(folder.job_folder / "locked"))
    (folder.job_folder / "link").symlink_to(victim.parent)
    (folder.job_folder / "file").symlink_to(victim)

    remove(folder)
    remove_leftovers(node.state, 60.0)

    assert not any((node.state / "tasks").iterdir())
    assert victim.read_text() == "untouched"


def test_a_large_folder_tree_is_removed_in_several_steps(tmp_path):
    (tmp_path / "tree").mkdir()
    for number in range(200):
        (tmp_path / "tree" / str(number)).mkdir()

    assert not remove_tree(tmp_path / "tree", -1.0)
    assert remove_tree(tmp_path / "tree", 60.0)
    assert remove_tree(tmp_path / "tree", 60.0)
    assert not (tmp_path / "tree").exists()


def test_removal_does_not_follow_a_symbolic_link(tmp_path, victim):
    (tmp_path / "link").symlink_to(victim.parent)

    with pytest.raises(NotADirectoryError):
        remove_tree(tmp_path / "link", 1.0)

    assert victim.read_text() == "untouched"


# An agent -----------------------------------------------------------------------------------


class Reports:
    """Simulated controller that records the longest check of an agent's tasks."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    def go_on(self, played: Played, jobs, done: Callable[[], bool], within_s: float = 150.0):
        """Start the agent and answer its reports until ``done`` returns true."""

        async def living() -> None:
            agent = played.agent
            await asyncio.wait_for(asyncio.to_thread(agent.adopt_tasks), MAX_LOOK_S)
            working = asyncio.create_task(agent.run())
            ends_s = time.monotonic() + within_s
            async for report in agent.reports():
                agent.receive(orders(*jobs, report_number=report.number))
                self.longest_s = max(self.longest_s, boottime_s() - agent.checked_s)
                assert not working.done(), working.exception()
                assert time.monotonic() < ends_s, played.agent.core.report()
                if done():
                    break
            working.cancel()

        asyncio.run(living())
        assert self.longest_s < MAX_LOOK_S


def hostile(seed: int, seconds: float, victim: Path, program: Path = PROGRAM, **values):
    job = order("hostile", "", Allocation(0, 1000, GIB), **values)
    job.job.command[:] = [PYTHON, *map(str, (program, seed, seconds, victim))]
    job.job.folder = "/"
    return job


HONEST = """
from presage import progress
import time
run = progress.begin(iterations=20)
for done in range(20):
    time.sleep(0.4)
    run.step(done + 1)
"""


def honest() -> object:
    job = order("honest", HONEST, Allocation(1, 1000, GIB))
    job.job.environment["PYTHONPATH"] = SOURCE
    return job


@pytest.mark.parametrize("way", ["fifo", "folder", "link", "sparse", "deep"])
def test_an_object_in_place_of_the_progress_file_does_not_block_agents(node, victim, way):
    number = {"fifo": 0, "folder": 1, "sparse": 2, "deep": 3, "link": 8}[way]
    code = (
        f"import os, sys, time; sys.path.insert(0, {str(PROGRAM.parent)!r}); import hostile_job\n"
        f"hostile_job.makers({str(victim)!r})[{number}](os.environ['PRESAGE_PROGRESS'])\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    job = order("job", code)
    reports, played = Reports(), Played(node.state)
    folder = played.folder("job.1")

    def is_up() -> bool:
        return folder.log.exists() and "up" in folder.log.read_text()

    looks = iter(range(5))
    reports.go_on(played, [job], lambda: is_up() and next(looks, 9) > 3)
    played.dies()

    played = Played(node.state)  # must not block either
    job.end_reason = "cancelled"
    reports.go_on(played, [job], lambda: played.ended("job"))
    played.dies()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_job_of_the_agents_own_account_blocks_the_agent(node, victim, seed):
    _survives(node, victim, seed, "", PROGRAM)


@needs_accounts
@pytest.mark.parametrize("seed", SEEDS)
def test_no_job_of_another_account_blocks_the_agent(open_node, seed):
    program = open_node.state.parent / "program.py"
    shutil.copy(PROGRAM, program)
    program.chmod(0o644)
    victim = open_node.state.parent / "victim"
    victim.write_text("untouched")
    victim.chmod(0o666)  # links of the job must not change it

    _survives(open_node, victim, seed, ALICE, program)


def _survives(node: Node, victim: Path, seed: int, run_as: str, program: Path) -> None:
    jobs = [hostile(seed, 6.0, victim, program, run_as=run_as), honest()]
    slots = (CPU, Slot("cpu-1", 4 * GIB, cpus=(0,)))
    before = _peak_bytes()
    reports, played = Reports(), Played(node.state, *slots)
    ends_s = time.monotonic() + random.Random(seed).uniform(2.0, 5.0)
    reports.go_on(played, jobs, lambda: time.monotonic() > ends_s)
    played.dies()

    played = Played(node.state, *slots)
    reports.go_on(played, jobs, lambda: played.ended("honest") and played.ended("hostile"))

    said = {task.job_id: task for task in played.agent.core.report()}
    assert said["honest"].exit.finished, said["honest"]
    forget = orders(version=9)
    for task in said.values():
        forget.forget.add(job_id=task.job_id, attempt=task.attempt)
    played.agent.receive(forget)
    played.agent._step()
    played.dies()

    def is_clean() -> bool:
        remove_leftovers(node.state, 10.0)
        left = {path.name for path in (node.state / "tasks").iterdir()}
        return left <= (set() if run_as else {"hostile.1"})  # the job may have damaged its spec

    wait_until(is_clean, 120.0)
    assert victim.read_text() == "untouched"
    assert _peak_bytes() - before < MORE_BYTES


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# The watchdog -------------------------------------------------------------------------------


def test_a_lease_is_not_renewed_while_task_checks_are_stalled(node, tmp_path, monkeypatch):
    stall_s, lease_s = 1.0, 4.0
    monkeypatch.setattr(agent_module, "STALLED_S", stall_s)
    os.mkfifo(tmp_path / "fifo")
    observe = vars(agent_module)["observe"]
    hangs = [False]

    def observes(*words):
        if hangs[0]:
            (tmp_path / "fifo").read_bytes()  # until a process writes there
        return observe(*words)

    monkeypatch.setattr(agent_module, "observe", observes)
    played = Played(node.state)
    agent, job = played.agent, order("job", SLEEPS)
    problems: list[str] = []
    heard = [0.0]

    async def answers() -> None:
        async for report in agent.reports():
            problems.append(report.problem)
            heard[0] = time.monotonic()
            agent.receive(orders(job, lease_s=lease_s, report_number=report.number))

    async def living() -> None:
        await asyncio.to_thread(agent.adopt_tasks)
        tasks = [asyncio.create_task(agent.run()), asyncio.create_task(answers())]
        await async_wait_until(lambda: played.runs("job"))
        looked_s, hangs[0] = agent.checked_s, True
        folder = played.folder("job.1")
        try:
            await async_wait_until(folder.exit)  # the shim applies the lease
            assert folder.exit().reason == "lease"  # type: ignore[union-attr]
            latest_s = agent.checked_s + stall_s + lease_s
            assert agent.checked_s < looked_s + 30.0
            assert (read_lease(node.state) or 0.0) <= latest_s
            assert any("has been checking its tasks" in problem for problem in problems)
            await async_wait_until(lambda: boottime_s() > latest_s + 1.0)
            said = len(problems)
            # The controller considers the node lost: several heartbeats are not sent.
            assert await async_stays_true(lambda: len(problems) == said, 3.0)
        finally:
            hangs[0] = False
            (tmp_path / "fifo").write_bytes(b"x")
        await async_wait_until(lambda: len(problems) > said and not problems[-1])
        await async_wait_until(lambda: played.ended("job"))
        for task in tasks:
            task.cancel()

    asyncio.run(living())
