"""Enforcement of the desired share of a task."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from presage.schedulers.live.agent.isolation.control_groups import (
    Group,
    Isolation,
    find_isolation,
    hierarchies,
    make_isolation,
    task_group_names,
)
from presage.schedulers.live.agent.isolation.job_environment import mps_percent
from presage.schedulers.live.agent.isolation.share_limit import ShareLimit
from presage.schedulers.live.agent.isolation.task_usage import CpuMeter
from presage.schedulers.live.agent.tasks.processes import descendants, stat
from presage.schedulers.live.agent.tasks.task import DesiredState, TaskSpec
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder
from presage.schedulers.live.agent.tasks.task_process import (
    TaskState,
    set_desired_state,
    task_state,
)
from tests.schedulers.live.agent.node import (
    COUNTS,
    SLEEPS,
    counts,
    done_by,
    ended,
    has_groups,
    job_pid,
    letter,
    says,
)
from tests.support.waiting import stays_true, wait_until

MIB = 2**20


@pytest.fixture(params=["groups", "duty cycle"])
def groups(request, tmp_path: Path):
    if request.param == "groups" and not has_groups(tmp_path):
        pytest.skip("this machine lets us make no control group for processors")
    return request.param == "groups"


def spent_s(pid: int) -> float:
    found = stat(pid)
    assert found is not None
    return found.cpu / 100


def shares(over_s: float, *folders: TaskFolder) -> list[float]:
    """Return the shares of one processor that the main processes of tasks use now."""
    pids = [job_pid(folder) for folder in folders]
    began_s, before_s = time.monotonic(), [spent_s(pid) for pid in pids]
    time.sleep(over_s)
    past_s = time.monotonic() - began_s
    return [(spent_s(pid) - before) / past_s for pid, before in zip(pids, before_s, strict=True)]


def share(folder: TaskFolder, over_s: float) -> float:
    """Return the share of one processor that the main process of a task uses now."""
    return shares(over_s, folder)[0]


def has_thrice(folder: TaskFolder, other: TaskFolder) -> bool:
    """Return whether a task uses more than three times as much as the other."""
    more, less = shares(1.0, folder, other)
    return more > 3 * less


def limit_memory(state: Path, name: str, memory_bytes: int) -> bool:
    """Limit the memory of a task's group, like an administrator; return whether it was set."""
    for hierarchy in hierarchies():
        for group in (hierarchy.mount / "presage").glob(f"*{state.name}*/task-{name}"):
            for file in ("memory.max", "memory.limit_in_bytes"):
                if (group / file).is_file():
                    (group / file).write_text(str(memory_bytes))
                    return True
    return False


def test_a_share_is_enforced_and_changes_take_effect(node, groups):
    folder = node.start(COUNTS, cpus=(0,), wanted=DesiredState(150), use_control_groups=groups)
    counts(folder)
    # With other load on the processor it gets less, or is sometimes stopped a little late.
    wait_until(lambda: 0.01 < share(folder, 1.0) < 0.3)
    held = folder.shim_state()
    assert held.enforcement.startswith("cgroup" if groups else "duty cycle")

    set_desired_state(folder, DesiredState(1000))

    wait_until(lambda: share(folder, 0.5) > 0.35)
    set_desired_state(folder, DesiredState(100))
    wait_until(lambda: share(folder, 1.0) < 0.25)


def test_a_weight_is_enforced_between_tasks_and_does_not_limit_a_single_one(node, tmp_path):
    if not has_groups(tmp_path):
        pytest.skip("this machine lets us make no control group for processors")
    large = node.start(
        COUNTS, job_id="large", cpus=(0,), wanted=DesiredState(900), hard_limit=False
    )
    counts(large)
    assert large.shim_state().enforcement.endswith(" weight")
    small = node.start(
        COUNTS, job_id="small", cpus=(0,), wanted=DesiredState(100), hard_limit=False
    )
    counts(small)
    wait_until(lambda: has_thrice(large, small))

    set_desired_state(large, DesiredState(100))
    set_desired_state(small, DesiredState(900))
    wait_until(lambda: has_thrice(small, large))

    set_desired_state(small, DesiredState(900, paused=True))
    wait_until(lambda: share(large, 0.5) > 0.35)


def test_a_weight_multiplies_a_share(node, tmp_path):
    if not has_groups(tmp_path):
        pytest.skip("this machine lets us make no control group for processors")
    urgent = node.start(
        COUNTS, job_id="urgent", cpus=(0,), wanted=DesiredState(300), hard_limit=False, weight=10
    )
    other = node.start(
        COUNTS, job_id="other", cpus=(0,), wanted=DesiredState(600), hard_limit=False
    )
    counts(urgent)
    counts(other)
    wait_until(lambda: has_thrice(urgent, other))


def test_a_paused_task_uses_no_processor_and_continues_later(node, groups):
    folder = node.start(COUNTS, wanted=DesiredState(500), use_control_groups=groups)
    counts(folder)

    set_desired_state(folder, DesiredState(500, paused=True))
    wait_until(lambda: letter(job_pid(folder)) == "T")
    before = spent_s(job_pid(folder))
    assert stays_true(lambda: spent_s(job_pid(folder)) == before, 0.8)
    done = done_by(folder)

    set_desired_state(folder, DesiredState(500))

    wait_until(lambda: done_by(folder) > done)
    assert task_state(folder) == TaskState.RUNNING


def test_a_pause_stops_processes_that_left_the_process_group(node):
    code = "import os, time\nif os.fork() == 0: os.setsid()\nwhile True: pass"
    folder = node.start(code, cpus=(0,), use_control_groups=False)
    below = wait_until(
        lambda: len(found := descendants(folder.holder() or 0)) == 2 and sorted(found)
    )
    wait_until(lambda: len({os.getsid(pid) for pid in below}) == 2)

    set_desired_state(folder, DesiredState(paused=True))
    wait_until(lambda: all(letter(pid) == "T" for pid in below))
    set_desired_state(folder, DesiredState())

    wait_until(lambda: all(letter(pid) != "T" for pid in below))


def test_the_smallest_share_is_accepted(node, groups):
    folder = node.start(SLEEPS, wanted=DesiredState(1), cpus=(0,), use_control_groups=groups)
    job_pid(folder)

    assert stays_true(lambda: task_state(folder) == TaskState.RUNNING, 0.5)
    set_desired_state(folder, DesiredState(1000))
    says(folder, "up")


def test_a_job_killed_by_the_kernel_for_memory_is_reported_as_out_of_memory(node, tmp_path):
    code = (
        "import os, time; print('up', flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
        "taken = bytearray(400 * 2**20); print('had it')"
    )
    folder, plenty = node.start(code), node.start(code, attempt=2)
    says(folder, "up")
    if not limit_memory(node.state, "job.1", 100 * MIB):
        pytest.skip("this machine lets us make no control group for memory")
    (tmp_path / "go").touch()

    exit_ = ended(folder)

    assert exit_.reason == "out of memory"
    assert exit_.signal == 9
    assert "had it" not in folder.log.read_text()
    assert ended(plenty).code == 0
    assert ended(plenty).peak_memory_bytes > 350 * MIB


def test_control_groups_are_removed_with_their_task(node, tmp_path):
    if not has_groups(tmp_path):
        pytest.skip("this machine lets us make no control group for processors")
    folder = node.start(SLEEPS)
    says(folder, "up")
    assert task_group_names(node.state) == {"job.1"}
    assert find_isolation(node.state, "job.1").pids() == {job_pid(folder)}

    set_desired_state(folder, DesiredState(end=None, paused=True))
    node.close()

    assert task_group_names(node.state) == set()
    for hierarchy in hierarchies():
        assert not list((hierarchy.mount / "presage").glob(f"*{node.state.name}*"))


def test_usage_from_control_groups_and_from_proc_agree(node, groups):
    folder = node.start(COUNTS, cpus=(0,), wanted=DesiredState(300), use_control_groups=groups)
    counts(folder)
    meter = CpuMeter(folder, cpus=1)
    assert meter.read().compute_milli is None
    before_s, began_s = spent_s(job_pid(folder)), time.monotonic()
    time.sleep(1.0)

    used = meter.read()
    by_proc = 1000 * (spent_s(job_pid(folder)) - before_s) / (time.monotonic() - began_s)

    assert used.compute_milli == pytest.approx(by_proc, abs=60)
    assert used.memory_bytes is not None
    assert 2 * MIB < used.memory_bytes < 100 * MIB


def test_version_2_files_have_their_own_names_and_units(tmp_path):
    group = Group(2, tmp_path, frozenset(("cpu", "memory")))
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "memory.stat").write_text("anon 100\nfile 7\nshmem 20\nanon_thp 3\n")
    (tmp_path / "memory.events").write_text("oom 2\noom_kill 1\noom_group_kill 0\n")
    (tmp_path / "cgroup.procs").write_text("3\n4\n")
    isolation = Isolation([group])

    assert isolation.limit_cpus(1.5) == "cgroup v2"
    assert group.read("cpu.max") == "150000 100000"
    isolation.limit_cpus(0.001)
    assert group.read("cpu.max") == "1000 1000000"
    isolation.limit_cpus(None)
    assert group.read("cpu.max") == "max 100000"
    assert isolation.weigh(250) == "cgroup v2 weight"
    assert group.read("cpu.weight") == "25"
    assert isolation.cpu_s() == 2.5
    assert isolation.memory_bytes() == 120
    assert isolation.out_of_memory_kills() == 1
    assert isolation.pids() == {3, 4}


def test_version_1_files_have_their_own_names_and_units(tmp_path):
    for name in ("cpu", "memory"):
        (tmp_path / name).mkdir()
    cpu = Group(1, tmp_path / "cpu", frozenset(("cpu", "cpuacct")))
    memory = Group(1, tmp_path / "memory", frozenset(("memory",)))
    (cpu.path / "cpuacct.usage").write_text("2500000000\n")
    (memory.path / "memory.stat").write_text("rss 1\ntotal_rss 100\ntotal_shmem 20\n")
    (memory.path / "memory.oom_control").write_text("oom_kill_disable 0\noom_kill 3\n")
    isolation = Isolation([cpu, memory])

    assert isolation.limit_cpus(0.5) == "cgroup v1"
    assert cpu.read("cpu.cfs_quota_us") == "50000"
    isolation.limit_cpus(None)
    assert cpu.read("cpu.cfs_quota_us") == "-1"
    assert isolation.weigh(250) == "cgroup v1 weight"
    assert cpu.read("cpu.shares") == "250"
    assert isolation.cpu_s() == 2.5
    assert isolation.memory_bytes() == 120
    assert isolation.out_of_memory_kills() == 3


def test_a_control_group_that_accepts_no_process_is_not_used(tmp_path):
    group = Group(2, tmp_path / "gone", frozenset(("cpu",)))
    isolation = Isolation([group])

    isolation.enter(1)

    assert isolation.limit_cpus(1.0) == ""
    assert isolation.cpu_s() is None


def test_without_control_groups_no_limit_is_set(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "presage.schedulers.live.agent.isolation.control_groups.hierarchies", lambda: iter(())
    )

    assert make_isolation(tmp_path, "task").limit_cpus(1.0) == ""


def test_a_job_on_a_gpu_without_mps_runs_with_a_duty_cycle(node):
    folder = node.start(COUNTS, cuda=(0,), cpus=(0,), wanted=DesiredState(150))
    counts(folder)

    wait_until(lambda: 0.01 < share(folder, 1.0) < 0.3)
    assert folder.shim_state().enforcement == "duty cycle"


def test_mps_limits_threads_in_percent_and_a_duty_cycle_does_the_rest():
    spec = TaskSpec("job", 1, ("train",), "/", "/checkpoints", cuda=(0,))
    limit = ShareLimit(spec, Isolation([]), percent=34)

    def of_time(milli: int) -> int:
        limit.set(milli, now_s=5.0)
        return limit.duty.compute_milli

    assert limit.max_milli == 340
    assert (of_time(335), of_time(340), of_time(1000)) == (1000, 1000, 1000)
    assert (of_time(170), of_time(34), of_time(1)) == (500, 100, 2)
    assert limit.how == "mps"
    assert not limit.set(1, now_s=6.0)
    assert limit.duty.since_s == 5.0


@pytest.mark.parametrize("cuda", [(0,), None])
def test_without_weights_a_latency_sensitive_job_is_not_limited(cuda):
    spec = TaskSpec(
        "job", 1, ("train",), "/", "/checkpoints", cuda=cuda, hard_limit=False, can_grow=True
    )
    free, held = (
        ShareLimit(spec, Isolation([]), None),
        ShareLimit(replace(spec, can_grow=False), Isolation([]), None),
    )
    free.set(300, now_s=5.0)
    held.set(300, now_s=5.0)
    assert (free.how, free.duty.compute_milli) == ("free", 1000)
    assert (held.how, held.duty.compute_milli) == ("duty cycle", 300)


def test_under_mps_a_job_that_can_grow_has_all_threads_and_a_duty_cycle(tmp_path):
    (tmp_path / "control").touch()
    mps = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    spec = TaskSpec("job", 1, ("train",), "/", "/checkpoints", mps, cuda=(0,), can_grow=True)
    assert mps_percent(replace(spec, can_grow=False), 335) == 34
    assert mps_percent(replace(spec, cuda=None), 335) is None
    limit = ShareLimit(spec, Isolation([]), mps_percent(spec, 335))

    def of_time(milli: int) -> int:
        limit.set(milli, now_s=5.0)
        return limit.duty.compute_milli

    assert limit.max_milli == 1000
    assert (of_time(335), of_time(600), of_time(1000)) == (335, 600, 1000)
    assert limit.how == "mps"
