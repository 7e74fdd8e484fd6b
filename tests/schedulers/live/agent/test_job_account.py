"""Jobs run as their submitter's account, isolated from the agent and other accounts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.errors import InvalidJobError, TaskFolderError
from presage.schedulers.live.agent.isolation.account import Account, find_account
from presage.schedulers.live.agent.isolation.inherited_environment import inherited_environment
from presage.schedulers.live.agent.tasks.leftovers import sweep
from presage.schedulers.live.agent.tasks.processes import stat
from presage.schedulers.live.agent.tasks.task import TaskSpec
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder
from presage.schedulers.live.agent.tasks.task_process import TaskState, launch, task_state
from tests.schedulers.live.agent.accounts import (
    ALICE,
    BOB,
    PYTHON,
    account,
    needs_accounts,
    reachable_node,
    uid_of,
)
from tests.schedulers.live.agent.node import (
    SLEEPS,
    SOURCE,
    Node,
    alive,
    ended,
    has_groups,
    job_pid,
    kill,
    says,
    shim_pid,
)
from tests.schedulers.live.agent.test_agent import Played, order, orders
from tests.support.waiting import stays_true, wait_until


@pytest.fixture
def node() -> Iterator[Node]:
    with reachable_node() as node:
        yield node


def start(node: Node, code: str, who: str = ALICE, **spec) -> TaskFolder:
    said = {
        "command": (PYTHON, "-c", code),
        "folder": "/",
        "account": account(who),
        "checkpoint": str(node.state / "checkpoints" / spec.get("job_id", "job")),
    }
    return node.start(code, **{**said, **spec})


TELLS = """
import json, os, resource
said = dict(line.split(":", 1) for line in open("/proc/self/status"))
umask = os.umask(0)
print(json.dumps({
    "uid": os.getresuid(), "gid": os.getresgid(), "groups": sorted(os.getgroups()),
    "new": said["NoNewPrivs"].strip(), "may": [said[f"Cap{k}"].strip() for k in ("Eff", "Prm")],
    "umask": umask, "core": resource.getrlimit(resource.RLIMIT_CORE),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    "open": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
}))
"""


@needs_accounts
def test_a_job_runs_as_its_account_without_any_privilege_of_root(node):
    folder = start(node, TELLS, max_open_files=1000)
    assert ended(folder).code == 0, folder.log.read_text()

    found = account()
    assert json.loads(folder.log.read_text()) == {
        "uid": [found.uid] * 3, "gid": [found.gid] * 3, "groups": sorted(found.groups),
        "new": "1", "may": ["0" * 16, "0" * 16], "umask": 0o077, "core": [0, 0], "files": 1000,
        "open": [0, 1, 2],
    }  # fmt: skip


ATTACKS_SHIM = """
import ctypes, os, signal
shim, refused = os.getppid(), []
def tried(name, what):
    try:
        what()
        print("CAN", name)
    except OSError as error:
        refused.append(name)
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP):
    tried(number, lambda: os.kill(shim, number))
for name in ("mem", "environ", "fd", "cwd", "root", "maps"):
    tried(name, lambda: os.listdir(f"/proc/{shim}/{name}") if name == "fd" else
          os.readlink(f"/proc/{shim}/{name}") if name in ("cwd", "root") else
          open(f"/proc/{shim}/{name}", "rb").read(1))
libc = ctypes.CDLL(None, use_errno=True)
for request in (16, 0x4206):  # attach, seize
    if libc.ptrace(request, shim, 0, 0) == 0:
        print("CAN ptrace")
print(len(refused), "refused")
"""


@needs_accounts
def test_a_job_can_neither_signal_nor_trace_its_shim(node):
    folder = start(node, ATTACKS_SHIM)

    assert ended(folder).code == 0
    assert folder.log.read_text() == "10 refused\n"


READS_ALL = """
import os, sys
state, found = sys.argv[1], []
task = os.path.dirname(os.path.dirname(os.environ["PRESAGE_PROGRESS"]))
for folder in (state, task, state + "/tasks", state + "/logs", state + "/outcomes"):
    try:
        print("CAN list", folder, os.listdir(folder))
    except OSError:
        pass
    for name in ("agent.id", "agent.lock", "lease", "secret", "spec.json", "state.json", "lock",
                 "desired_state.json", "shim.log", "log.first", "../other.1/spec.json", "x/y",
                 "../other.1/log", "../other.1/job/progress.json"):
        for mode in ("rb", "r+b", "wb"):
            try:
                open(os.path.join(folder, name), mode)
                print("CAN", mode, folder, name)
            except OSError:
                pass
    for change in (lambda: os.mkdir(folder + "/new"), lambda: os.rename(folder, folder + "-mine"),
                   lambda: os.chmod(folder, 0o777),
                   lambda: os.link(folder + "/spec.json", "/tmp/mine")):
        try:
            change()
            print("CAN change", folder)
        except OSError:
            pass
open(os.environ["PRESAGE_PROGRESS"], "w").write("{}")
open(os.environ["PRESAGE_CHECKPOINT"] + "/mine", "w").write("mine")
print("done", file=open("/dev/stdout", "a"))  # opened again
"""


@needs_accounts
def test_a_job_can_access_only_its_own_part_of_the_state_folder(node):
    played = Played(node.state)  # restricts the state folder
    (node.state / "secret").write_text("token")
    (node.state / "secret").chmod(0o600)
    other = start(node, SLEEPS, BOB, job_id="other")
    says(other, "up")

    folder = start(node, READS_ALL, command=(PYTHON, "-c", READS_ALL, str(node.state)))

    assert ended(folder).code == 0, folder.log.read_text()
    assert folder.log.read_text() == "done\n"
    owner = (folder.job_folder.stat().st_uid, folder.job_folder.stat().st_mode & 0o777)
    kept = (node.state / "checkpoints" / "job").stat()
    assert owner == (uid_of(ALICE), 0o700) == (kept.st_uid, kept.st_mode & 0o777)
    for name in ("spec.json", "state.json", "exit.json", "desired_state.json", "lock"):
        found = (folder.path / name).stat()
        assert (found.st_uid, found.st_mode & 0o777) == (0, 0o600), name
    played.dies()


@needs_accounts
def test_a_job_of_an_account_dies_with_its_shim(node):
    folder = start(node, SLEEPS)
    says(folder, "up")
    job = job_pid(folder)

    kill(shim_pid(folder))

    wait_until(lambda: not alive(job))


FORKS = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except OSError:
    print(made, flush=True)
"""


@needs_accounts
@pytest.mark.parametrize("groups", [True, False])
def test_a_job_cannot_exceed_its_process_limit(node, groups):
    if groups and not has_groups(node.state):
        pytest.skip("no control groups can be made here")
    folder = start(node, FORKS, max_processes=40, use_control_groups=groups)

    assert ended(folder).code == 0
    assert 0 < int(folder.log.read_text()) < 40


def test_a_job_that_exceeds_its_memory_limit_is_out_of_memory(node):
    if not has_groups(node.state):
        pytest.skip("no control groups can be made here")
    code = "x = bytearray(10**8); x[::4096] = b'x' * len(x[::4096])"

    folder = node.start(code, max_host_memory_bytes=50 * 2**20)

    assert ended(folder).reason == "out of memory"


@needs_accounts
def test_the_error_of_an_account_without_access_names_the_folder_and_the_fix(node):
    node.state.chmod(0o700)
    folder = start(node, SLEEPS)

    why = ended(folder).reason
    node.state.chmod(0o711)

    assert why.startswith(f"could not start: account {ALICE!r} cannot write to {folder.path}/job")
    assert "chmod o+x" in why


@needs_accounts
def test_a_checkpoint_folder_is_neither_a_link_nor_a_folder_of_another_account(node):
    shared = node.state.parent / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    target = node.state.parent / "root-only"
    target.mkdir(mode=0o700)
    (shared / "link").symlink_to(target)
    (shared / "bobs").mkdir()
    os.chown(shared / "bobs", uid_of(BOB), 0)
    (shared / "roots").mkdir()

    for name in ("link", "bobs", "roots"):
        with pytest.raises(TaskFolderError, match=r"checkpoint folder .* cannot be created"):
            start(node, SLEEPS, checkpoint=str(shared / name))

    assert target.stat().st_uid == (shared / "roots").stat().st_uid == 0
    assert (shared / "bobs").stat().st_uid == uid_of(BOB)


@needs_accounts
@pytest.mark.parametrize(
    "run_as, allowed, why",
    [
        ("no-such", True, "no account 'no-such' on node a: create it, or give the token run-as="),
        ("root", False, "account 'root' of node a is root"),
        ("", False, "no account to run as on node a, whose agent is root"),
    ],
)
def test_a_job_without_an_account_on_the_node_fails_with_a_reason(node, run_as, allowed, why):
    played = Played(node.state, allow_root_jobs=allowed)
    played.lives(orders(order("job", SLEEPS, run_as=run_as)), lambda: played.ended("job"))

    (said,) = played.agent.core.report()
    assert why in said.exit.description
    assert not said.exit.finished and not said.exit.lost
    assert not played.folder("job.1").path.exists()


@needs_accounts
def test_an_agent_running_as_root_runs_each_job_as_the_account_of_its_command(node):
    played = Played(node.state)
    names = {"of-alice": ALICE, "of-bob": BOB, "of-root": "root", "of-none": ""}
    jobs = [order(name, "", run_as=run_as) for name, run_as in names.items()]
    for job in jobs:
        job.job.command[:] = ["/bin/sh", "-c", "id -u; echo $HOME; pwd"]
        job.job.folder = "/"
    # With one device, jobs run one after the other.
    played.lives(orders(*jobs), lambda: all(played.ended(name) for name in names))

    said = {name: played.folder(f"{name}.1").log.read_text().split() for name in names}
    assert {name: int(lines[0]) for name, lines in said.items()} == {
        "of-alice": uid_of(ALICE), "of-bob": uid_of(BOB), "of-root": 0, "of-none": 0,
    }  # fmt: skip
    assert said["of-bob"][1:] == [account(BOB).home, "/"]


def test_an_agent_without_root_runs_all_jobs_as_its_own_account(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert find_account("anybody", "a", allow_root=False) is None
    assert find_account("", "a", allow_root=False) is None


def test_a_job_inherits_only_named_variables_of_the_agent(monkeypatch):
    kept = {"PATH": "/bin", "LC_ALL": "C", "NCCL_DEBUG": "INFO", "CUDA_HOME": "/cuda", "TZ": "UTC"}
    secrets = ("PRESAGE_CLUSTER_TOKEN", "PGPASSWORD", "https_proxy", "AWS_SECRET_ACCESS_KEY")
    for name in (*os.environ,):
        monkeypatch.delenv(name)
    for name, value in {**kept, **dict.fromkeys(secrets, "x"), "MORE": "1"}.items():
        monkeypatch.setenv(name, value)
    who = Account("ann", 7, 7, (7,), "/home/ann", "/bin/zsh")

    assert inherited_environment(who, ("MORE",)) == {
        **kept, "MORE": "1",
        "HOME": "/home/ann", "USER": "ann", "LOGNAME": "ann", "SHELL": "/bin/zsh",
    }  # fmt: skip


def test_an_account_in_a_task_spec_round_trips():
    spec = TaskSpec("a", 1, ("x",), "/", "/c", account=Account("ann", 7, 8, (8, 9), "/h", "/s"))

    assert TaskSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    for damage in ({"uid": -1}, {"groups": [True]}, {"name": None, "gid": "0"}):
        said = json.loads(json.dumps(spec.to_json()))
        said["account"].update(damage)
        with pytest.raises(InvalidJobError, match="not a valid task spec"):
            TaskSpec.from_json(said)


# Processes without a shim -------------------------------------------------------------------

CLEARS = """
import os, sys, time
if os.fork() == 0:
    os.execve(sys.executable, [sys.executable, "-c", sys.argv[1]], {})
time.sleep(600)
"""
SAYS = "import os, time; print(os.getpid(), 'up', flush=True); time.sleep(600)"


@needs_accounts
@pytest.mark.parametrize("groups", [True, False])
def test_a_process_that_clears_its_environment_does_not_survive_its_shim(node, groups):
    if groups and not has_groups(node.state):
        pytest.skip("no control groups can be made here")
    folder = start(node, CLEARS, command=(PYTHON, "-c", CLEARS, SAYS), use_control_groups=groups)
    says(folder, "up")
    child = int(folder.log.read_text().split()[0])

    kill(shim_pid(folder))
    wait_until(lambda: task_state(folder) is TaskState.LOST)

    assert child in sweep(node.state) or not alive(child)
    wait_until(lambda: not alive(child))


@needs_accounts
def test_a_process_cannot_claim_a_task_of_another_account(node):
    task = node.make(SLEEPS, account=account(ALICE))  # without a shim
    variables = {"PRESAGE_STATE": str(node.state), "PRESAGE_TASK": task.folder.name}
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **variables}, user=BOB) as bobs:
        wait_until(lambda: b"sleep" in Path(f"/proc/{bobs.pid}/cmdline").read_bytes())
        assert sweep(node.state) == frozenset()
        with subprocess.Popen(["sleep", "600"], env=variables, user=ALICE) as alices:
            wait_until(lambda: b"sleep" in Path(f"/proc/{alices.pid}/cmdline").read_bytes())
            assert sweep(node.state) == {alices.pid}
        assert alive(bobs.pid)
        bobs.kill()


def test_a_process_cannot_pass_off_another_folder_as_a_task_folder(node):
    elsewhere = node.state.parent / "elsewhere"
    elsewhere.mkdir()
    os.mkfifo(elsewhere / "lock")
    os.mkfifo(elsewhere / "spec.json")
    variables = {"PRESAGE_STATE": str(node.state), "PRESAGE_TASK": "../../elsewhere"}
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **variables}) as other:
        wait_until(lambda: b"sleep" in Path(f"/proc/{other.pid}/cmdline").read_bytes())
        assert sweep(node.state) == frozenset()
        assert alive(other.pid)
        other.kill()


def test_a_reused_process_id_is_not_signalled(node):
    from presage.schedulers.live.agent.tasks.processes import send

    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE) as one:
        found = stat(one.pid)
        assert found is not None
        send(signal.SIGKILL, {one.pid: found._replace(start=found.start - 1)})
        assert stays_true(lambda: one.poll() is None, 0.2)
        send(signal.SIGKILL, {one.pid: found})
        assert one.wait(20) == -signal.SIGKILL


def test_a_job_of_the_agents_own_account_gains_no_privileges(node):
    code = "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('NoNew')])"
    task = node.make(code, environment={"PYTHONPATH": SOURCE})

    assert launch(task)
    assert ended(task.folder).code == 0
    assert task.folder.log.read_text() == "['1']\n"
