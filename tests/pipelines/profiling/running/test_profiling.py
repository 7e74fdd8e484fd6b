"""Profiler on a processor, with real processes and jobs."""

from __future__ import annotations

import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml

from presage.errors import ConfigError, ProfilingError
from presage.features.device.device import Share, usable_cores
from presage.features.device.local_device import detect
from presage.features.tables import schemas as tables
from presage.pipelines.profiling.calibrate import TIMING_S, times_s
from presage.pipelines.profiling.campaign import campaign
from presage.pipelines.profiling.campaign.campaign import colocated_window_s, run_campaign
from presage.pipelines.profiling.campaign.campaign_settings import LEAST_BUDGET_S, CampaignSettings
from presage.pipelines.profiling.campaign.campaign_tables import CampaignTables, lock_folder
from presage.pipelines.profiling.machine import machine_digest, versions
from presage.pipelines.profiling.retrace import retrace
from presage.pipelines.profiling.running import profiler
from presage.pipelines.profiling.running.measure import (
    common_steps,
    less_disturbed,
    measure_colocated,
    measure_solo,
    solo_window_s,
    unsteadiness,
)
from presage.pipelines.profiling.running.profile_rows import Context, colocation_rows
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.running.run_results import MemberResult, RunResult
from presage.pipelines.profiling.running.work import Work
from presage.pipelines.profiling.running.worker import failure_kind, step_through
from presage.pipelines.profiling.sampling.samplers import CpuSampler
from presage.pipelines.profiling.zoo import JobConfig, parse
from presage.pipelines.stages.profile import BUDGET_S, main
from presage.system.processes.child_process import Child, ChildFailure
from tests.support.waiting import wait_until

CORES = usable_cores()
# Tests do not wait for a quiet machine: what they measure need not be right, only recorded.
HASTY = RunOptions(threads=CORES, quiet_wait_s=0.0, quiet_sample_s=0.01, attempts=1)
TINY = parse("mlp/w128-d2/b8/sgd")
SETTINGS = CampaignSettings(
    campaign="test", budget_s=300, jobs=2, colocations=1, window_s=0.2, families=("mlp",)
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a campaign of two jobs and one co-location."""
    folder = tmp_path_factory.mktemp("campaign")
    run_campaign(folder, SETTINGS, lambda progress: None, HASTY)
    return folder


@pytest.fixture
def calibrated(measured: Path, tmp_path: Path) -> Path:
    """Folder of a campaign in which only the calibration is done."""
    shutil.copy(measured / "devices.parquet", tmp_path)
    return tmp_path


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tables.read(
        tables.TABLES[name], folder / f"{name}.parquet"
    ).to_pylist()
    return found


def workers(parent: psutil.Process) -> list[psutil.Process]:
    """Return its worker processes."""
    children = parent.children()
    return [child for child in children if "running.worker" in " ".join(command(child))]


def command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


# --- steps and windows --------------------------------------------------------------------------


def test_only_steps_within_the_time_in_which_all_members_ran_are_counted():
    early = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]
    late = [(0.5, 2.5), (2.5, 3.5)]

    assert common_steps([early, late]) == [[(1.0, 2.0), (2.0, 3.0)], late]


def test_if_one_member_made_no_step_no_step_of_another_counts():
    assert common_steps([[(0.0, 1.0)], []]) == [[], []]


def test_windows_grow_with_the_step_time_up_to_a_limit():
    assert solo_window_s(1.2, warm_step_s=0.01) == 1.2
    assert solo_window_s(1.2, warm_step_s=0.2) == pytest.approx(2.4)
    assert solo_window_s(1.2, warm_step_s=10) == 6.0
    assert colocated_window_s(1.2, solo_steps_s=0.01) == pytest.approx(2.0)
    assert colocated_window_s(1.2, solo_steps_s=0.5) == pytest.approx(4.0)
    assert colocated_window_s(1.2, solo_steps_s=10) == 8.0


def test_a_worker_starts_at_the_start_stops_after_the_deadline_and_steps_at_least_once():
    start_s = time.monotonic() + 0.05
    steps, cpu_s = step_through(lambda: time.sleep(0.01), start_s, start_s + 0.1)

    assert steps[0][0] >= start_s
    assert steps[-2][1] < start_s + 0.1 <= steps[-1][1]
    assert cpu_s < 0.05  # sleeping is not work
    assert len(step_through(lambda: None, 0.0, 0.0)[0]) == 1


def test_a_measured_window_is_better_than_a_quiet_unmeasured_one():
    def window(load: float | None, failure: str = "") -> RunResult:
        return RunResult((MemberResult("a"), MemberResult("b", failure=failure)), load)

    noisy, quiet, empty = window(0.3), window(0.1), window(0.0, failure="timeout")

    assert less_disturbed(noisy, empty) is less_disturbed(empty, noisy) is noisy
    assert less_disturbed(noisy, quiet) is less_disturbed(quiet, noisy) is quiet
    assert less_disturbed(quiet, window(0.1)) is quiet
    assert less_disturbed(noisy, unknown := window(None)) is unknown


def test_a_window_with_different_halves_is_replaced_by_a_steadier_one():
    slow_from_the_middle = np.array([0.1] * 10 + [0.2] * 10)
    assert unsteadiness(slow_from_the_middle) == pytest.approx(1.0)
    assert unsteadiness(np.array([0.1, 0.1, 9.0, 0.1] * 5)) == 0.0  # a hiccup is none
    assert unsteadiness(np.array([0.1, 0.2, 0.3])) == 0.0

    steady = RunResult((MemberResult("a", unsteadiness=0.01),), 0.02)
    unsteady = RunResult((MemberResult("a", unsteadiness=0.5),), 0.0)
    assert less_disturbed(unsteady, steady) is steady


def test_a_timed_function_warms_up_unless_one_call_takes_all_the_time():
    calls: list[float] = []
    few = times_s(lambda: calls.append(0.0), "cpu", most=3)
    slow = times_s(lambda: time.sleep(TIMING_S), "cpu")

    assert (len(few), len(calls)) == (3, 4)
    assert len(slow) == 1


# --- samplers -----------------------------------------------------------------------------------


def test_a_busy_process_is_foreign_load_unless_it_is_a_member():
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        stranger, member = CpuSampler(), CpuSampler()
        stranger.start([])
        member.start([burner.pid])
        wait_until(lambda: sum(psutil.Process(burner.pid).cpu_times()[:2]) > 0.3)
        as_stranger, as_member = stranger.stop(), member.stop()
    finally:
        burner.kill()
        burner.wait()

    assert as_stranger.foreign_load is not None
    assert as_member.foreign_load is not None
    assert as_stranger.foreign_load > as_member.foreign_load + 0.05


# --- failures -----------------------------------------------------------------------------------


def test_a_job_without_enough_memory_is_out_of_memory_and_ends_its_colocation():
    device = detect()
    starved = RunOptions(threads=1, memory_limit_bytes=64 << 20)
    (alone,) = measure_solo(TINY, device, starved, window_s=0.1).members
    together = measure_colocated([TINY, TINY], device, starved, window_s=0.1)

    assert (alone.failure, alone.step_time_median_s) == ("out-of-memory", None)
    assert "memory" in alone.message.lower()
    assert together.failed


def test_a_job_that_raises_is_a_crash_with_its_message():
    (member,) = measure_solo(JobConfig("mlp", "no-such", 8), detect(), HASTY, window_s=0.1).members

    assert member.failure == "crash"
    assert "no-such" in member.message


def test_a_silent_child_is_a_timeout_and_an_exited_one_a_crash():
    with Child("json.tool", {}, threads=1) as child, pytest.raises(ChildFailure) as died:
        child.read(until_s=time.monotonic() + 30)
    with Child("json.tool", {}, threads=1) as child, pytest.raises(ChildFailure) as silent:
        child.read(until_s=time.monotonic())

    assert (died.value.failure, silent.value.failure) == ("crash", "timeout")


@pytest.mark.parametrize(
    ("failure", "fits"), [("out-of-memory", False), ("crash", True), ("timeout", True), ("", True)]
)
def test_out_of_memory_means_no_fit_and_a_failure_means_no_slowdown(failure, fits):
    device = detect()
    context = Context(device, "test", machine_digest(device), versions(device))
    work = Work(("a", "b"), (Share(mode="time-slice"),) * 2, 1.0, (0.1, 0.1))
    ran = MemberResult("a", steps=9, step_time_median_s=0.3, solo_step_time_s=0.2)
    result = RunResult((ran, replace(ran, job="b", failure=failure)), foreign_load=0.0)
    made = colocation_rows(result, work, context, 1.0)

    assert [row["fits"] for row in made] == [fits, fits]
    assert [row["slowdown"] is None for row in made] == [bool(failure)] * 2
    assert [row["failure"] for row in made] == ["", failure]


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (MemoryError(), "out-of-memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out-of-memory"),
        (RuntimeError("not enough memory: you tried to allocate"), "out-of-memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "out-of-memory"),
        (RuntimeError("shapes do not match"), "crash"),
    ],
)
def test_out_of_memory_is_distinguished_from_other_errors(error, failure):
    assert failure_kind(error) == failure


# --- campaigns ----------------------------------------------------------------------------------


def test_a_campaign_fills_every_table(measured):
    executions, colocations = rows(measured, "executions"), rows(measured, "colocations")
    jobs, nodes = rows(measured, "jobs"), rows(measured, "nodes")
    (device,) = rows(measured, "devices")

    assert len(jobs) == len(executions) == 2
    assert {row["job_id"] for row in executions} <= {row["job_id"] for row in jobs}
    assert {row["graph_digest"] for row in jobs} == {row["graph_digest"] for row in nodes}
    assert len(colocations) == colocations[0]["members"]
    for row in executions:
        assert row["failure"] == ""
        assert 0 < row["step_time_median_s"] <= row["step_time_p90_s"]
        assert 0 < row["compute_utilization"] <= 1.05
        assert row["memory_peak_bytes"] >= 100 << 20  # torch itself needs more
        assert row["setup_s"] > row["step_time_median_s"]
        assert (row["share"], row["sharing_mode"]) == (1.0, "exclusive")
    for row in colocations:
        assert row["fits"]
        assert row["slowdown"] == pytest.approx(row["step_time_median_s"] / row["solo_step_time_s"])
    assert device["cores"] == CORES
    assert dict(zip(device["precisions"], device["peak_flops_per_s"], strict=True))["fp32"] > 1e9
    assert device["memory_bandwidth_bytes_per_s"] > 1e9
    assert 0 < device["op_overhead_s"] < 1e-3
    assert device["context_bytes"] > 100 << 20


def test_a_complete_campaign_measures_nothing_again(measured):
    before = {path.name: path.read_bytes() for path in measured.iterdir()}
    end = run_campaign(measured, SETTINGS, lambda progress: None, HASTY)

    assert (end.phase, end.solo, end.colocated) == ("done", 0, 0)
    assert {path.name: path.read_bytes() for path in measured.iterdir()} == before


def test_retracing_with_the_same_tracer_changes_no_row(measured):
    before = {name: rows(measured, name) for name in ("jobs", "nodes")}

    assert retrace(measured) == 2
    for name, table in before.items():
        assert sorted(map(str, rows(measured, name))) == sorted(map(str, table))


def test_a_campaign_is_bound_to_its_share_and_folder(measured):
    if CORES > 1:
        fewer = CampaignSettings(campaign="test", budget_s=60, threads=1)
        with pytest.raises(ProfilingError, match="new campaign"):
            run_campaign(measured, fewer, lambda progress: None)
    with lock_folder(measured), pytest.raises(ProfilingError, match="another campaign"):
        run_campaign(measured, SETTINGS, lambda progress: None)


def test_calibration_uses_all_cores_with_any_number_of_job_threads(tmp_path, monkeypatch):
    used = []

    def calibrate(device, *, threads, environment):
        used.append(threads)
        return device

    monkeypatch.setattr(profiler, "calibrate", calibrate)
    settings = CampaignSettings(campaign="test", budget_s=60, jobs=0, colocations=0, threads=1)
    run_campaign(tmp_path, settings, lambda progress: None, replace(HASTY, threads=1))

    assert used == [CORES]
    assert rows(tmp_path, "executions") == []


def test_the_smallest_budget_measures_a_job_or_is_an_error_that_names_the_need(
    tmp_path,
):
    settings = CampaignSettings(campaign="test", budget_s=LEAST_BUDGET_S, families=("mlp",))
    try:
        end = run_campaign(tmp_path, settings, lambda progress: None, HASTY)
    except ProfilingError as error:  # on a machine that is busy with other tests
        assert "raise profile.budget_s to" in str(error)
    else:
        assert end.solo >= 1
        assert rows(tmp_path, "executions")[0]["failure"] == ""


def test_the_error_of_a_budget_used_up_by_calibration_names_the_seconds_needed(
    calibrated, monkeypatch
):
    monkeypatch.setattr(campaign, "FIRST_SOLO_S", 40.0)
    settings = CampaignSettings(campaign="test", budget_s=30)

    with pytest.raises(ProfilingError, match=r"30 s is too small .* raise profile.budget_s to 4\d"):
        run_campaign(calibrated, settings, lambda progress: None, HASTY)


@pytest.mark.parametrize("wish", [{"sharing": ("time-slice", "mps")}, {"solo_shares": (1.0, 0.5)}])
def test_an_unsupported_share_is_rejected_before_any_measurement(tmp_path, wish):
    settings = CampaignSettings(campaign="test", budget_s=60, families=("mlp",), **wish)

    with pytest.raises(ProfilingError, match=r"sharing mode 'mps'.* is a processor"):
        run_campaign(tmp_path, settings, lambda progress: None, HASTY)
    assert not list(tmp_path.iterdir())


def test_the_error_names_a_system_other_than_linux(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")

    with pytest.raises(ProfilingError, match="needs Linux, but this is Darwin"):
        run_campaign(tmp_path / "new", SETTINGS, lambda progress: None)
    assert not (tmp_path / "new").exists()


def test_the_error_names_a_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()

    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            ProfilingError, match=f"^{folder}: cannot be created or read as a folder"
        ):
            run_campaign(folder, SETTINGS, lambda progress: None)


def test_a_worker_killed_by_the_kernel_is_out_of_memory_and_the_campaign_continues(calibrated):
    def kill_the_first_worker() -> None:
        (victim,) = wait_until(lambda: workers(psutil.Process()))
        os.kill(victim.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_the_first_worker)
    killer.start()
    settings = CampaignSettings(
        campaign="test", budget_s=60, jobs=2, colocations=0, window_s=0.2, families=("mlp",)
    )
    end = run_campaign(calibrated, settings, lambda progress: None, HASTY)
    killer.join()

    executions = rows(calibrated, "executions")
    assert [row["failure"] for row in executions] == ["out-of-memory", ""]
    assert executions[0]["step_time_median_s"] is None
    assert (end.failed, rows(calibrated, "colocations")) == (1, [])


@pytest.fixture
def running(calibrated: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Campaign in a separate process, at the start of its first worker."""
    flags = "--campaign test --budget-s 60 --families mlp --jobs 9 --colocations 9".split()
    process = subprocess.Popen(
        [sys.executable, "-m", "presage.pipelines.stages.profile", str(calibrated), *flags],
        stderr=subprocess.PIPE,
        cwd=calibrated,
    )
    try:
        wait_until(lambda: workers(psutil.Process(process.pid)))
        yield process
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_leaves_complete_tables_and_no_worker(running, calibrated):
    (worker,) = workers(psutil.Process(running.pid))
    running.send_signal(signal.SIGINT)
    _, message = running.communicate(timeout=30)

    assert running.returncode == 130, message
    assert b"Traceback" not in message
    assert not worker.is_running()
    names = {path.name for path in calibrated.iterdir()}
    CampaignTables(calibrated)  # reads and checks every table that is there
    assert {"devices.parquet", "jobs.parquet", "nodes.parquet"} <= names
    assert not list(calibrated.glob(".*.partial"))


def test_no_worker_outlives_a_campaign_that_is_killed(running):
    (worker,) = workers(psutil.Process(running.pid))
    running.kill()
    running.wait()

    wait_until(lambda: not worker.is_running() or worker.status() == "zombie", within_s=10)


def test_a_repeatedly_killed_campaign_resumes_and_measures_nothing_twice(calibrated):
    draw = random.Random(0)
    kept: list[dict[str, Any]] = []
    flags = "--campaign test --budget-s 60 --families mlp --jobs 2 --colocations 1 --window-s 0.2"
    stage = [
        sys.executable,
        "-m",
        "presage.pipelines.stages.profile",
        str(calibrated),
        *flags.split(),
    ]
    for alive_s in (draw.uniform(0.5, 4), draw.uniform(4, 12), None):
        with subprocess.Popen(
            stage, cwd=calibrated, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            if alive_s is None:
                _, message = process.communicate(timeout=120)
                assert process.returncode == 0, message
            else:
                time.sleep(alive_s)
                os.killpg(process.pid, signal.SIGKILL)
        found = CampaignTables(calibrated)  # reads and checks every table that is there
        assert found.rows("executions")[: len(kept)] == kept
        kept = found.rows("executions")

    assert len({row["job_id"] for row in kept}) == len(kept) == 2
    assert len({row["colocation_id"] for row in found.rows("colocations")}) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"budget_s": 5}, "15 s"),
        ({"budget_s": 60, "families": ["resnt"]}, "'resnet'"),
        ({"budget_s": 60, "solo_share": 2}, "solo_share"),
        ({"budget_s": 60, "window_s": 0}, "window_s"),
        ({"budget_s": 60, "threads": CORES + 1}, "threads"),
    ],
)
def test_the_error_of_an_unmeasurable_job_has_a_remedy(settings, words):
    with pytest.raises(ProfilingError, match=words):
        CampaignSettings(campaign="test", **settings)


@pytest.mark.parametrize(
    ("params", "error", "words"),
    [
        ("profile: {budget: 60}", ConfigError, "profile.budget is not .* did you mean 'budget_s'"),
        ("profile: {jobs: many}", ConfigError, "profile.jobs='many' is not an integer"),
        ("profile: {budget_s: 5}", ProfilingError, "15 s"),
        ("train: {}", ConfigError, "no section 'profile'"),
    ],
)
def test_the_stage_reads_its_parameters_and_names_an_invalid_one(tmp_path, params, error, words):
    path = tmp_path / "params.yaml"
    path.write_text(params)

    with pytest.raises(error, match=words):
        main([str(tmp_path / "out"), "--params", str(path)])
    assert not (tmp_path / "out").exists()


def test_the_budget_is_one_number():
    params = yaml.safe_load((Path(__file__).parents[4] / "params.yaml").read_text())

    assert params["profile"]["budget_s"] == BUDGET_S


@pytest.mark.parametrize("full", ["nodes", "executions"])
def test_a_full_disk_is_one_line_of_error_with_complete_tables_and_no_worker(
    measured, calibrated, full
):
    """A limit of the file size simulates a full disk: files before ``full`` fit."""
    whole = (measured / "executions.parquet").stat().st_size
    limit = {"nodes": 100, "executions": whole - 1000}[full]
    prepare = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    run = "from presage.pipelines.stages.profile import main, run_stage; run_stage(main)"
    flags = "--campaign test --budget-s 60 --families mlp --jobs 2 --colocations 1 --window-s 0.2"
    done = subprocess.run(
        [sys.executable, "-c", f"{prepare}; {run}", str(calibrated), *flags.split()],
        capture_output=True, text=True, timeout=120, check=False, cwd=calibrated,
    )  # fmt: skip

    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.stderr.endswith(f"{error}\n"), done.stderr
    reason = "cannot be written (File too large); the previous file is intact"
    assert f"{full}.parquet: {reason}" in error
    assert done.returncode == 1
    CampaignTables(calibrated)  # reads and checks every table that is there
    assert not (calibrated / f"{full}.parquet").exists()
    assert not list(calibrated.glob(".*.partial"))
    assert not [process for process in psutil.process_iter() if str(calibrated) in cwd(process)]


def cwd(process: psutil.Process) -> str:
    try:
        return process.cwd()
    except psutil.Error:
        return ""
