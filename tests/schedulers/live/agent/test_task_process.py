"""A task is started at most once, survives its agent and leaves no processes or files."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from presage.errors import TaskFolderError
from presage.schedulers.live.agent.connection.lease import boottime_s, read_lease
from presage.schedulers.live.agent.isolation.control_groups import task_group_names
from presage.schedulers.live.agent.tasks import task_process
from presage.schedulers.live.agent.tasks.leftovers import sweep
from presage.schedulers.live.agent.tasks.processes import stat
from presage.schedulers.live.agent.tasks.task import DesiredState
from presage.schedulers.live.agent.tasks.task_process import (
    TaskState,
    adopt,
    create,
    launch,
    remove,
    set_desired_state,
    task_state,
    why_cannot_create,
    why_cannot_launch,
)
from tests.schedulers.live.agent.node import (
    COUNTS,
    NEVER_MIND,
    SLEEPS,
    SOURCE,
    Node,
    alive,
    counts,
    done_by,
    ended,
    job_pid,
    kill,
    letter,
    says,
    shim_pid,
)
from tests.support.waiting import stays_true, wait_until

LEAVES_HOME = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), "up", flush=True)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


def test_a_task_with_an_unreadable_lock_counts_as_running(node):
    folder = node.make(SLEEPS).folder
    assert folder.holder() is None

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # no more files can be opened
    try:
        assert folder.holder() == 0
        assert task_state(folder) is TaskState.RUNNING
        with pytest.raises(TaskFolderError, match="is held"):
            remove(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/etc/passwd")]
)
def test_a_lock_file_that_a_job_replaced_has_no_holder(node, make):
    folder = node.make(SLEEPS).folder
    folder.lock_file.unlink()
    make(folder.lock_file)

    assert folder.holder() is None


def test_the_folder_of_an_attempt_is_created_once(node):
    task = node.make(SLEEPS)

    with pytest.raises(TaskFolderError, match=r"job\.1 cannot be created"):
        node.make(SLEEPS)

    assert adopt(node.state).tasks == (task,)
    assert [path.name for path in (node.state / "tasks").iterdir()] == ["job.1"]


def test_only_one_of_many_concurrent_creations_succeeds(node):
    def make(_: int) -> bool:
        try:
            node.make(SLEEPS)
        except TaskFolderError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(make, range(16))) == 1


def test_only_one_of_many_concurrent_launches_starts_the_job(node):
    task = node.make("import time; print('started', flush=True); time.sleep(0.5)")

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda _: launch(task), range(6))) == 1
    assert ended(task.folder).code == 0
    assert not launch(task)

    assert task.folder.log.read_text() == "started\n"


def test_a_shim_is_not_a_child_of_the_agent_and_leads_a_session(node):
    folder = node.start(SLEEPS)
    shim = shim_pid(folder)
    found = stat(shim)

    assert found is not None
    assert found.parent != os.getpid()
    assert os.getsid(shim) == shim
    assert Path(f"/proc/{shim}/fd/0").readlink() == Path(os.devnull)
    with pytest.raises(ChildProcessError):
        os.waitpid(shim, os.WNOHANG)


def test_tasks_survive_their_killed_agent_and_are_adopted(node):
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from tests.schedulers.live.agent.node import COUNTS, Node, job_pid\n"
        "job_pid(Node(Path(sys.argv[1])).start(COUNTS))\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    root = str(Path(__file__).parents[4])
    agent = subprocess.Popen(
        [sys.executable, "-c", code, str(node.state)],
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{root}"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert agent.stdout is not None
    assert agent.stdout.readline() == b"ready\n"
    os.killpg(agent.pid, signal.SIGKILL)
    agent.wait()
    agent.stdout.close()

    (task,) = adopt(node.state).tasks

    assert task_state(task.folder) == TaskState.RUNNING
    counts(task.folder)
    before = done_by(task.folder)
    wait_until(lambda: done_by(task.folder) > before)
    set_desired_state(task.folder, NEVER_MIND)
    assert ended(task.folder).reason == "ended"


@pytest.mark.parametrize("seed", range(6))
def test_a_shim_killed_at_any_moment_leaves_no_processes(node, seed):
    task = node.make(LEAVES_HOME, use_control_groups=bool(seed % 2))
    delay_s = random.Random(seed).uniform(0.0, 0.15)
    if seed >= 4:
        assert launch(task)
        says(task.folder, "up")
    else:
        launch(task)
        time.sleep(delay_s)
    if shim := task.folder.holder():
        kill(shim)
    wait_until(lambda: task.folder.holder() is None)

    state = task_state(task.folder)
    said = task.folder.shim_state()
    if said is not None and said.job_pid is not None:
        wait_until(lambda: not alive(said.job_pid))
    wait_until(lambda: not sweep(node.state))

    assert state in (TaskState.LOST, TaskState.NEW)
    assert (state == TaskState.NEW) == (not task.folder.started)
    assert node.processes() == []
    assert task_group_names(node.state) == set()
    assert launch(task) == (state == TaskState.NEW)


def test_sweep_spares_tasks_with_a_shim_and_tasks_of_other_nodes(node, tmp_path):
    (tmp_path / "other").mkdir()
    other = Node(tmp_path / "other")
    theirs = other.start(SLEEPS)
    folder, orphaned = node.start(COUNTS), node.start(LEAVES_HOME, job_id="orphaned")
    counts(folder)
    says(orphaned, "up")
    orphan = int(orphaned.log.read_text().split()[0])
    kill(orphaned.holder())
    wait_until(lambda: orphaned.holder() is None)
    assert alive(orphan)

    assert orphan in sweep(node.state)

    assert not alive(orphan)
    assert task_state(orphaned) == TaskState.LOST
    assert task_state(folder) == task_state(theirs) == TaskState.RUNNING
    assert alive(job_pid(folder)) and alive(job_pid(theirs))
    other.close()


def test_sweep_removes_old_incomplete_folders(node):
    task = node.make(SLEEPS)
    for name in (".new-x", ".old-y", ".new-z"):
        (node.state / "tasks" / name).mkdir()
        (node.state / "tasks" / name / "lock").touch()
    for name in (".new-x", ".old-y"):
        os.utime(node.state / "tasks" / name, (0, 0))

    sweep(node.state)

    assert adopt(node.state).tasks == (task,)
    assert sorted(path.name for path in (node.state / "tasks").iterdir()) == [".new-z", "job.1"]


def test_sweep_spares_processes_that_only_name_the_state_folder(node, monkeypatch):
    monkeypatch.setenv("PRESAGE_STATE", str(node.state))
    bystander = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE)
    assert bystander.stdout is not None
    assert bystander.stdout.readline() == b"up\n"
    monkeypatch.setenv("PRESAGE_TASK", "gone.1")
    folder = node.start(SLEEPS)

    assert sweep(node.state) == frozenset()

    assert bystander.poll() is None
    assert task_state(folder) == TaskState.RUNNING
    bystander.kill()
    bystander.wait()
    bystander.stdout.close()


def test_sweep_of_a_state_folder_without_tasks_does_nothing(tmp_path):
    assert sweep(tmp_path) == frozenset()


def test_damaged_task_folders_are_returned_separately(node):
    whole, damaged = node.make(SLEEPS), node.make(SLEEPS, job_id="damaged")
    (damaged.folder.path / "spec.json").write_text('{"job_id": 5}')

    assert adopt(node.state) == ((whole,), (damaged.folder,))


def test_a_task_with_an_unreadable_exit_is_lost(node):
    folder = node.start("pass")
    ended(folder)
    (folder.path / "exit.json").write_text('{"code": 0')

    assert task_state(folder) == TaskState.LOST


def test_only_ended_tasks_are_removed(node):
    folder = node.start(SLEEPS)
    with pytest.raises(TaskFolderError, match=f"held by process {folder.holder()}"):
        remove(folder)
    set_desired_state(folder, NEVER_MIND)
    ended(folder)

    remove(folder)

    assert adopt(node.state).tasks == ()
    with pytest.raises(TaskFolderError):
        remove(folder)


@pytest.mark.parametrize("begun", [False, True])
def test_a_task_ends_when_its_folder_is_gone(node, begun):
    folder = node.start(SLEEPS)
    shim = folder.holder()
    if begun:
        says(folder, "up")

    folder.path.rename(node.state / "elsewhere")

    wait_until(lambda: not alive(shim))
    assert node.processes() == []


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets us mount no file system")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_loses_neither_a_job_nor_its_exit(small_disk):
    node = Node(small_disk)
    code = COUNTS + "    if run.checkpoint_requested: break\n"
    folder = node.start(code, grace_s=600.0)
    counts(folder)
    filling = small_disk / "filling"
    with filling.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 512)
    pid, shim = job_pid(folder), shim_pid(folder)
    assert set_desired_state(
        folder, DesiredState(300)
    )  # otherwise a task that fills the disk could not be ended
    assert folder.desired_state() == DesiredState(300)
    with pytest.raises(TaskFolderError, match="cannot be created"):
        node.make(SLEEPS, job_id="another")
    node.lease(900.0)  # otherwise a full disk would end all jobs of a node
    extended_s = read_lease(node.state)
    assert extended_s is not None
    assert extended_s > boottime_s() + 800.0
    assert stays_true(lambda: alive(pid), 0.8)

    os.kill(pid, signal.SIGUSR1)  # ends the job
    wait_until(lambda: not alive(pid))
    assert stays_true(
        lambda: alive(shim) and task_state(folder) == TaskState.RUNNING, 0.3
    )  # it cannot record the exit yet
    filling.unlink()

    assert (ended(folder).code, ended(folder).reason) == (0, "")
    node.close()


def test_a_job_that_fills_the_disk_is_paused_and_ended(small_disk):
    node = Node(small_disk)
    code = (
        "import time\n"
        "with open('filling', 'wb', buffering=0) as file:\n"
        "    while True:\n"
        "        try: file.write(b'x' * 512)\n"
        "        except OSError: time.sleep(0.05)\n"
    )

    def is_full() -> bool:
        try:
            with (small_disk / "probe").open("ab", buffering=0) as file:
                file.write(bytes(4096))
        except OSError:
            return True
        return False

    folder = node.start(code)
    pid = job_pid(folder)
    wait_until(is_full)

    assert set_desired_state(folder, DesiredState(paused=True))
    wait_until(lambda: letter(pid) == "T")
    assert set_desired_state(folder, NEVER_MIND)
    wait_until(lambda: not alive(pid))
    (small_disk / "filling").unlink()

    assert ended(folder).reason == "ended"
    node.close()


def test_a_shim_that_dies_at_its_start_is_an_error_and_can_be_launched_again(node):
    task = node.make(SLEEPS)
    task.folder.lock_file.unlink()
    task.folder.lock_file.mkdir()  # so that it cannot hold its folder

    with pytest.raises(TaskFolderError, match="its shim died at its start"):
        launch(task)
    task.folder.lock_file.rmdir()
    assert launch(task)


def test_the_reason_why_no_process_can_be_started(monkeypatch):
    assert why_cannot_launch() == ""
    python = task_process.PYTHON
    monkeypatch.setattr(task_process, "SHIM", "import no_such_module; never")
    assert "No module named 'no_such_module'" in why_cannot_launch()
    monkeypatch.setattr(task_process, "PYTHON", ("/no/such/python", *python[1:]))
    assert why_cannot_launch().startswith("no process can be started")


def test_nothing_starts_while_the_disk_is_full(small_disk):
    node = Node(small_disk)
    task = node.make("print('up')")
    filling = small_disk / "filling"
    with filling.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 512)

    assert launch(task)
    wait_until(lambda: task_state(task.folder) == TaskState.RUNNING)
    assert stays_true(lambda: not task.folder.started, 0.3)
    assert task_state(task.folder) == TaskState.RUNNING
    filling.unlink()

    assert ended(task.folder).code == 0


def test_a_state_folder_may_have_any_name(tmp_path, monkeypatch):
    monkeypatch.setenv("LC_ALL", "POSIX")
    node = Node(tmp_path / "ü [x]*\n%2f" / ("long" * 40))
    folder = node.start(SLEEPS, job_id="../ü\ud800\n" + "x" * 400)
    says(folder, "up")
    assert len(adopt(node.state).tasks) == 1
    shim = shim_pid(folder)
    kill(shim)
    wait_until(lambda: not alive(shim))

    sweep(node.state)

    assert node.processes() == []
    assert task_group_names(node.state) == set()


def test_a_task_folder_that_cannot_be_written_is_an_error(node):
    with pytest.raises(TaskFolderError, match="cannot be created"):
        create(node.state / "lease", node.make(SLEEPS).spec, DesiredState())
    with pytest.raises(TaskFolderError, match="cannot be created"):
        node.make(SLEEPS, job_id="odd", agent_data={"a": {1, 2}})


def test_without_a_checkpoint_folder_no_task_is_created(node):
    with pytest.raises(
        TaskFolderError, match="checkpoint folder /dev/null/below cannot be created"
    ):
        node.make(SLEEPS, checkpoint="/dev/null/below")
    assert adopt(node.state).tasks == ()


def test_the_reason_why_no_task_can_be_created_is_found_by_a_trial(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    assert why_cannot_create(tmp_path, checkpoints) == ""
    assert why_cannot_create(tmp_path, Path("/dev/null/below")) == (
        "no file can be written in /dev/null/below (Not a directory); free space there"
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
