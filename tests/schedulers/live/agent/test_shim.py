"""Start, end and exit state of a task, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from presage.schedulers.live.agent import observation
from presage.schedulers.live.agent.connection.lease import boottime_s, write_lease
from presage.schedulers.live.agent.isolation.task_usage import make_meter
from presage.schedulers.live.agent.observation import make_exit, observe
from presage.schedulers.live.agent.tasks.log_archive import archive_log, archived_log
from presage.schedulers.live.agent.tasks.log_file import limit_log_size, read_log
from presage.schedulers.live.agent.tasks.task import DesiredState, End
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder
from presage.schedulers.live.agent.tasks.task_process import (
    Task,
    TaskState,
    launch,
    set_desired_state,
    task_state,
)
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.training.job_folder import LEFT, WORKER_VARIABLE
from tests.schedulers.live.agent.node import (
    COUNTS,
    SLEEPS,
    SOURCE,
    alive,
    counts,
    done_by,
    ended,
    job_pid,
    kill,
    letter,
    saved_by,
    says,
)
from tests.support.waiting import stays_true, wait_until

CHECKPOINT = DesiredState(end=End(checkpoint=True, reason="preempted"))
AT_ONCE = DesiredState(end=End(checkpoint=False))
SAVES_AND_EXITS = COUNTS + "    if run.checkpoint_requested: run.saved(done); raise SystemExit(0)\n"
SAVES_AND_GOES_ON = COUNTS + "    if run.checkpoint_requested: run.saved(done)\n"
DEAF = """
import signal, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


def test_a_job_runs_to_its_end_and_its_output_is_stored(node):
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    task = node.make(code)
    assert task_state(task.folder) == TaskState.NEW
    before_s = boottime_s()

    assert launch(task)
    exit_ = ended(task.folder)

    assert (exit_.code, exit_.signal, exit_.reason) == (3, None, "")
    assert before_s <= exit_.ended_boottime_s <= boottime_s()
    assert abs(exit_.ended_at_unix_s - time.time()) < 60
    assert 0 < exit_.cpu_s < 10
    assert exit_.peak_memory_bytes > 2**20
    assert sorted(task.folder.log.read_text().split()) == ["err", "out"]


def test_the_exit_of_a_job_killed_by_a_signal_names_it(node):
    exit_ = ended(node.start("import os; os.kill(os.getpid(), 11)"))

    assert (exit_.code, exit_.signal, exit_.reason) == (None, 11, "")


@pytest.mark.parametrize(
    "spec",
    [
        {"command": ("/no/such/program",)},
        {"command": ("no-such-program-anywhere",)},
        {"command": (os.devnull,)},
        {"command": ("\ud800",)},
        {"folder": "/no/such/folder"},
        {"cpus": (4095,)},
        {"cpus": (10**30,)},
    ],
    ids=str,
)
def test_a_job_that_cannot_start_reports_the_reason(node, spec):
    exit_ = ended(node.start(SLEEPS, **spec))

    assert (exit_.code, exit_.signal) == (None, None)
    assert exit_.reason.startswith("could not start: ")
    assert len(exit_.reason) > len("could not start: ") + 5


def test_the_reason_names_the_program_as_the_user_wrote_it(node):
    script, text = node.state / "script", node.state / "text"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    text.write_text("x")
    text.chmod(0o600)
    said = {
        "nosuchprogram": "no program 'nosuchprogram' on the PATH",
        "/no/such": "no program '/no/such' on this node",
        "./train.sh": f"no program './train.sh' in folder {node.state}",
        str(script): f"program '{script}' names an interpreter in its first line that is not "
        "on this node",
        str(text): f"program '{text}': Permission denied",
    }
    for number, (program, why) in enumerate(said.items()):
        folder = node.start("", command=(program, "on"), job_id=str(number))
        assert ended(folder).reason == f"could not start: {why}"

    folder = node.start(SLEEPS, folder="/nowhere", job_id="elsewhere")
    assert ended(folder).reason == "could not start: folder /nowhere does not exist on this node"
    folder = node.start(SLEEPS, folder=str(text), job_id="within")
    assert ended(folder).reason == f"could not start: folder {text}: Not a directory"


def test_a_task_with_a_damaged_spec_is_not_started(node):
    task = node.make(SLEEPS)
    (task.folder.path / "spec.json").write_text('{"job_id": ')

    launch(task)

    assert "spec.json" in ended(task.folder).reason


def test_a_job_has_its_own_environment_and_nothing_of_the_agents(node, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "x")
    code = (
        "import json, os, signal; print(json.dumps([dict(os.environ), os.getcwd(), "
        "sorted(os.sched_getaffinity(0)), os.getsid(0) == os.getpid(), "
        "[int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ())], "
        "sorted(os.listdir('/proc/self/fd')), os.read(0, 1).decode()]))"
    )
    folder = node.start(
        code, job_id="a/b", cpus=(0,), environment={"MINE": "1"}, folder="/", memory_bytes=0
    )
    assert ended(folder).code == 0
    environment, cwd, cpus, leads, blocked, files, read = json.loads(folder.log.read_text())

    assert folder.path == node.state / "tasks" / "a%2fb.1"
    assert environment.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # set by the Python of the job
    assert environment == {
        "MINE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PRESAGE_TASK": "a%2fb.1",
        "PRESAGE_STATE": str(node.state),
        "PRESAGE_PROGRESS": str(folder.path / "job" / "progress.json"),
        "PRESAGE_CHECKPOINT": str(node.state / "checkpoints" / "job"),
    }
    assert (cwd, cpus, leads, blocked, read) == ("/", [0], True, [], "")
    assert len(files) == 4  # in, out, error, and the listing itself


def test_a_job_on_a_gpu_sees_only_that_gpu_and_its_allocated_memory(node, tmp_path):
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps" / "control").touch()
    code = (
        "import os; print([os.environ.get(name) for name in ('CUDA_VISIBLE_DEVICES', "
        "'CUDA_DEVICE_ORDER', 'PRESAGE_MEMORY_BYTES', 'CUDA_MPS_ACTIVE_THREAD_PERCENTAGE', "
        "'OMP_NUM_THREADS')])"
    )
    spec = {"cuda": (3,), "memory_bytes": 20 * 2**30}
    mps = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mps"), "OMP_NUM_THREADS": "7"}
    plain = node.start(code, job_id="plain", **spec)
    shared = node.start(code, job_id="mps", environment=mps, wanted=DesiredState(335), **spec)

    assert ended(plain).code == ended(shared).code == 0
    omp = str(len(os.sched_getaffinity(0)))
    assert plain.log.read_text() == f"{['3', 'PCI_BUS_ID', str(20 * 2**30), None, omp]}\n"
    assert shared.log.read_text() == f"{['3', 'PCI_BUS_ID', str(20 * 2**30), '34', '7']}\n"
    assert shared.shim_state().enforcement == "mps"
    assert plain.shim_state().enforcement == "duty cycle"


OVERFLOWS = """
from presage import progress
from presage.schedulers.live import job_progress as progress
class OutOfMemoryError(RuntimeError): ...
progress.begin(iterations=10).step(1)
raise OutOfMemoryError("CUDA out of memory")
"""


def test_a_gpu_out_of_memory_error_is_reported_as_out_of_memory(node):
    folder = node.start(OVERFLOWS)

    how = make_exit(ended(folder), folder.progress())
    assert how == pb.Exit(out_of_memory=True, description="ended with status 1")


def test_a_worker_that_leaves_its_elastic_job_has_not_failed(node):
    assert (observation.WORKER_VARIABLE, observation.LEFT) == (WORKER_VARIABLE, LEFT)
    code = f"raise SystemExit({LEFT})"
    left = pb.Exit(requested=True, description="it left its elastic job")
    failed = pb.Exit(description="ended with status 75")
    for environment, expected in (({WORKER_VARIABLE: "m1"}, left), ({}, failed)):
        folder = node.start(code, environment=environment, attempt=len(environment))
        ended(folder)
        task = Task(folder, folder.spec())
        seen = observe(task, make_meter(task), None)
        assert seen is not None
        assert seen.exit == expected


def test_a_gang_on_one_node_sees_all_its_gpus(node):
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'])"
    folder = node.start(code, cuda=(1, 0, 3))

    assert ended(folder).code == 0
    assert folder.log.read_text() == "1,0,3 PCI_BUS_ID\n"
    task = Task(folder, folder.spec())
    seen = observe(task, make_meter(task), None)
    assert seen is not None
    assert ended(folder).peak_memory_bytes > 0  # of the host; GPUs are not included
    assert seen.peak_memory_bytes == 0


def test_a_job_that_saves_on_request_and_exits_resumes_from_its_checkpoint(node):
    first = node.start(SAVES_AND_EXITS)
    counts(first)

    assert set_desired_state(first, CHECKPOINT)
    assert not set_desired_state(first, CHECKPOINT)
    exit_ = ended(first)

    assert exit_.reason == "ended"
    saved = saved_by(first)
    assert saved > 0
    again = node.start(SAVES_AND_EXITS, attempt=2)
    counts(again)
    assert done_by(again) >= saved


def test_a_job_that_saves_is_not_limited_to_its_reduced_share(node):
    code = (
        "import time\nfrom presage import progress\n"
        "run = progress.begin(iterations=10)\nrun.step(5)\n"
        "while not run.checkpoint_requested:\n    time.sleep(0.001)\n"
        "began_s = time.process_time()\n"
        "while time.process_time() - began_s < 1:\n    pass\n"  # saving takes 1 s
        "run.saved(5)\n"
    )
    folder = node.start(code, wanted=DesiredState(50), use_control_groups=False, grace_s=8.0)
    wait_until(lambda: (report := folder.progress()) and report.done == 5)

    set_desired_state(folder, CHECKPOINT)

    assert ended(folder).reason == "ended"
    assert saved_by(folder) == 5


def test_a_job_that_saves_and_does_not_exit_is_terminated_before_its_grace_period_ends(node):
    folder = node.start(SAVES_AND_GOES_ON, grace_s=600.0)
    counts(folder)

    set_desired_state(folder, CHECKPOINT)
    exit_ = ended(folder)

    assert (exit_.reason, exit_.signal) == ("ended", signal.SIGTERM)
    assert saved_by(folder) > 0


def test_a_checkpoint_of_the_same_iteration_counts_as_new(node):
    code = (
        "import time\nfrom presage import progress\n"
        "run = progress.begin(iterations=10)\nrun.step(5)\nrun.saved(5)\n"
        "while True:\n    time.sleep(0.01)\n    if run.checkpoint_requested: run.saved(5)\n"
    )
    folder = node.start(code, grace_s=600.0)
    wait_until(lambda: (report := folder.progress()) and report.saved == 5)

    set_desired_state(folder, CHECKPOINT)

    assert ended(folder).reason == "ended"


def test_a_job_that_ignores_sigusr1_and_sigterm_is_killed_after_its_grace_period(node):
    folder = node.start(DEAF, grace_s=0.3)
    says(folder, "up")

    set_desired_state(folder, CHECKPOINT)
    exit_ = ended(folder)

    assert (exit_.reason, exit_.signal) == ("ended", signal.SIGKILL)


def test_a_job_without_a_signal_handler_is_ended_by_the_checkpoint_request(node):
    folder = node.start(SLEEPS, grace_s=600.0)
    says(folder, "up")

    set_desired_state(folder, CHECKPOINT)

    assert (ended(folder).reason, ended(folder).signal) == ("ended", signal.SIGUSR1)


def test_an_end_without_a_checkpoint_shortens_the_grace_period(node):
    heard = "lambda *_: print('asked for a checkpoint', flush=True)"
    folder = node.start(DEAF.replace("SIGUSR1, signal.SIG_IGN", f"SIGUSR1, {heard}"), grace_s=600.0)
    says(folder, "up")
    set_desired_state(folder, CHECKPOINT)
    says(folder, "asked")
    set_desired_state(folder, DesiredState())  # an end cannot be withdrawn
    assert stays_true(lambda: task_state(folder) == TaskState.RUNNING, 0.1)

    set_desired_state(folder, AT_ONCE)

    assert ended(folder).signal == signal.SIGKILL


@pytest.mark.parametrize("groups", [True, False])
def test_a_paused_job_is_continued_to_save(node, groups):
    folder = node.start(SAVES_AND_EXITS, use_control_groups=groups, wanted=DesiredState(200))
    counts(folder)
    set_desired_state(folder, DesiredState(200, paused=True))
    wait_until(lambda: letter(job_pid(folder)) == "T")

    set_desired_state(folder, DesiredState(200, paused=True, end=End(checkpoint=True)))

    assert ended(folder).reason == "ended"
    assert saved_by(folder) > 0


def test_a_paused_job_that_ignores_signals_is_killed(node):
    folder = node.start(DEAF, grace_s=0.1, wanted=DesiredState(50), use_control_groups=False)
    says(folder, "up")
    set_desired_state(folder, DesiredState(paused=True))
    wait_until(lambda: letter(job_pid(folder)) == "T")

    set_desired_state(folder, CHECKPOINT)

    assert ended(folder).signal == signal.SIGKILL


def test_a_task_ended_before_its_start_never_starts(node):
    exit_ = ended(node.start("open('began', 'w')", wanted=CHECKPOINT))

    assert (exit_.code, exit_.signal, exit_.reason) == (None, None, "ended")
    assert not (node.state / "began").exists()


@pytest.mark.parametrize("groups", [True, False])
def test_grandchildren_in_their_own_sessions_end_with_the_job(node, groups):
    code = (
        "import os, sys, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork():\n"
        "            os._exit(0)\n"
        "        os.setsid()\n"
        "        os.execve(sys.executable, [sys.executable, '-c', "
        "'import os, time; print(os.getpid(), flush=True); time.sleep(600)'], {})\n"
        "while len(open(sys.argv[1]).read().split()) < 3:\n"
        "    time.sleep(0.01)\n"
    )
    log = str(node.state / "tasks" / "job.1" / "log")
    folder = node.start(code, use_control_groups=groups, command=(sys.executable, "-c", code, log))

    assert ended(folder).code == 0
    orphans = [int(word) for word in folder.log.read_text().split()]
    assert len(orphans) == 3
    assert not any(alive(pid) for pid in orphans)


def test_a_job_that_forks_endlessly_is_ended(node):
    code = (
        "import os, time\n"
        "print('up', flush=True)\n"
        "while True:\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "    time.sleep(0.05)\n"
        "    if len(os.listdir('/proc')) > 400: time.sleep(600)\n"
    )
    folder = node.start(code, use_control_groups=False)
    says(folder, "up")
    wait_until(lambda: len(node.processes()) > 5)

    set_desired_state(folder, AT_ONCE)

    assert ended(folder).reason == "ended"
    assert node.processes() == []


def test_when_the_lease_expires_the_job_saves_and_ends(node):
    folder = node.start(SAVES_AND_EXITS)
    counts(folder)

    node.lease(0.2)

    assert ended(folder).reason == "lease"
    assert saved_by(folder) > 0


def test_after_a_long_expired_lease_a_job_ends_without_a_checkpoint(node):
    """After a suspension of the machine another attempt may run elsewhere."""
    folder = node.start(SAVES_AND_EXITS, grace_s=20.0)
    counts(folder)

    node.lease(-100.0)

    exit_ = ended(folder)
    assert (exit_.reason, exit_.signal) == ("lease", signal.SIGKILL)
    assert saved_by(folder) == 0


@pytest.mark.parametrize("over_s", [0.0, -5.0])
def test_a_damaged_lease_is_ignored_and_the_last_valid_one_applies(node, over_s):
    folder = node.start(SLEEPS)
    says(folder, "up")
    for text in ("", "7", "{}", '{"until_boottime_s": NaN}', '{"until_boottime_s": 1}'):
        (node.state / "lease").write_text(text)
        assert stays_true(lambda: task_state(folder) == TaskState.RUNNING, 0.02)
    (node.state / "lease").unlink()
    assert stays_true(lambda: task_state(folder) == TaskState.RUNNING, 0.7)

    write_lease(node.state, over_s)

    assert ended(folder).reason == "lease"


def test_without_a_lease_nothing_starts(node):
    node.lease(-1.0)

    exit_ = ended(node.start("open('began', 'w')"))

    assert (exit_.code, exit_.reason) == (None, "lease")
    assert not (node.state / "began").exists()


def test_a_task_waits_for_its_first_lease(node):
    (node.state / "lease").unlink()
    folder = node.start("print('up')")
    assert stays_true(lambda: folder.log.read_text() == "", 0.2)

    node.lease(600.0)

    assert ended(folder).code == 0


def test_jobs_save_and_end_when_the_machine_shuts_down(node):
    folder = node.start(SAVES_AND_EXITS)
    counts(folder)

    os.kill(folder.holder(), signal.SIGTERM)

    assert ended(folder).reason == "terminated"
    assert saved_by(folder) > 0


def test_the_end_of_a_growing_log_is_kept(node):
    code = (
        "import time\n"
        "for i in range(40):\n    print(f'{i:03d}' * 1000, flush=True)\n    time.sleep(0.05)\n"
        "print('last')"
    )
    folder = node.start(code, log_bytes=10_000)

    assert ended(folder).code == 0
    assert folder.log.read_text().endswith("last\n")
    assert folder.log.stat().st_size < 60_000
    assert (folder.path / "log.old").stat().st_size == 10_000
    assert (folder.path / "log.old").stat().st_mode & 0o777 == 0o600
    began_anew = folder.log.read_bytes()
    last = read_log(folder.log, -5, 100)
    assert (last.content, last.is_complete) == (b"last\n", True)
    assert last.offset > 60_000  # counted from the first byte written
    before = read_log(folder.log, 0, 10**6)
    assert (len(before.content), before.is_complete) == (10_000, False)
    assert read_log(folder.log, before.offset + 10_000, 10**6).content == began_anew

    archive_log(folder)

    log = archived_log(folder.state, folder.name)
    kept = log.read_bytes()
    assert kept.endswith(began_anew)
    assert len(kept) == 10_000 + len(began_anew)
    assert read_log(log, last.offset, 100) == last
    assert read_log(log, 0, 10**6) == (before.offset, kept, True)
    assert log.stat().st_mode & 0o777 == 0o600
    again = TaskFolder(folder.path)
    again.path.mkdir(exist_ok=True)
    again.log.write_text("another")  # a later job with that id
    (folder.path / "log.first").unlink()
    archive_log(again)
    assert read_log(log, 0, 100) == (0, b"another", True)
    assert log.parent.stat().st_mode & 0o777 == 0o700


def test_a_log_is_truncated_even_if_its_end_cannot_be_copied(tmp_path, monkeypatch):
    def has_no_capacity(target, source, at, count):
        os.write(target, b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "sendfile", has_no_capacity)
    log = tmp_path / "log"
    log.write_bytes(bytes(100))

    limit_log_size(log, 50)
    log.write_bytes(b"new")

    assert read_log(log, 0, 1000) == (100, b"new", True)


def test_a_damaged_desired_state_is_ignored(node):
    folder = node.start(COUNTS)
    counts(folder)
    for text in ("", "{", "[]", '{"compute_milli": 0, "paused": false, "end": null}', "null"):
        folder.desired_state_file.write_text(text)
        os.kill(folder.holder(), signal.SIGHUP)
        assert stays_true(lambda: task_state(folder) == TaskState.RUNNING, 0.02)
    before = done_by(folder)

    wait_until(lambda: done_by(folder) > before)
    set_desired_state(folder, AT_ONCE)
    assert ended(folder).reason == "ended"


def test_an_invalid_progress_file_does_not_prevent_the_end_of_a_task(node):
    folder = node.start(DEAF, grace_s=0.5)
    says(folder, "up")
    folder.progress_file.write_bytes(b'{"iterations": 1e999, "done": -3, \xff')

    set_desired_state(folder, CHECKPOINT)

    assert ended(folder).signal == signal.SIGKILL


def test_a_job_killed_by_another_process_was_not_ended_by_its_shim(node):
    folder = node.start(SLEEPS)
    says(folder, "up")

    kill(job_pid(folder))

    assert (ended(folder).reason, ended(folder).signal) == ("", signal.SIGKILL)


def test_a_shim_imports_only_the_standard_library():
    code = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "import presage.schedulers.live.agent.tasks.shim\n"
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )

    command = [sys.executable, "-I", "-S", "-c", code, SOURCE]

    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert set(found) <= {"presage", "__main__"}
