"""Complete campaign on a GPU with a synthetic driver; the jobs run on this processor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest

from presage.errors import ProfilingError
from presage.features.device import nvml_gpu as gpu
from presage.features.tables import schemas as tables
from presage.pipelines.profiling.campaign.campaign import run_campaign
from presage.pipelines.profiling.campaign.campaign_progress import Progress
from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
from presage.pipelines.profiling.campaign.campaign_tables import CampaignTables
from presage.pipelines.profiling.running import profiler
from presage.pipelines.profiling.running import worker_pool as workers_module
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.running.worker_pool import Workers
from presage.system.processes.child_process import Child
from tests.pipelines.profiling.gpu_window import GIB, failing
from tests.pipelines.profiling.recorded_nvml import RecordedNvml, responses

pytestmark = [pytest.mark.usefixtures("gpu_machine"), pytest.mark.timeout(300)]

HASTY = RunOptions(threads=1, quiet_wait_s=0.0, quiet_sample_s=0.01, attempts=1)
SETTINGS = CampaignSettings(
    campaign="test", budget_s=200, jobs=2, colocations=1, window_s=0.3, families=("mlp",),
    sizes="small", members={2: 1.0},
)  # fmt: skip
H200 = responses(
    DeviceGetCount=1, DeviceGetHandleByIndex="handle", DeviceGetName="NVIDIA H200",
    DeviceGetIndex=0, DeviceGetUUID="GPU-1",
    DeviceGetMemoryInfo={"total": 140 * GIB, "used": GIB, "free": 139 * GIB},
    DeviceGetMigMode=[0, 0], DeviceGetComputeMode=0, DeviceGetPowerUsage=300_000,
    DeviceGetClockInfo=1980, DeviceGetUtilizationRates={"gpu": 60, "memory": 1},
    SystemGetDriverVersion="580.95.05",
)  # fmt: skip


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RecordedNvml:
    """Driver of an H200 without MPS; jobs and calibration run on the processor."""
    made = RecordedNvml(H200)
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(gpu, "torch_runs_on_nvidia", lambda: True)
    monkeypatch.setattr(profiler, "calibrate", lambda device, **_: device)
    monkeypatch.setattr(workers_module, "SPARES", 2)
    monkeypatch.setattr(Workers, "_start", _start_on_processor)
    return made


def _start_on_processor(_self: Workers) -> Child:
    spec = {"threads": 1, "seed": 0, "memory_limit_bytes": None, "device": "cpu"}
    return Child(workers_module.WORKER, spec, threads=1)


def rows(folder: Path, table: tables.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tables.read(table, folder / f"{table.name}.parquet").to_pylist()
    return found


def test_a_campaign_on_a_gpu_holds_its_drivers_figures_and_leaves_no_worker(driver, tmp_path):
    before = set(psutil.Process().children())
    end = run_campaign(tmp_path / "out", SETTINGS, lambda _: None, HASTY)
    alone, together = (rows(tmp_path / "out", t) for t in (tables.EXECUTIONS, tables.COLOCATIONS))

    assert (end.solo, end.colocated, end.failed) == (2, 1, 0)
    assert {row["device_kind"] for row in (*alone, *together)} == {"h200"}
    assert {row["compute_utilization"] for row in alone} == {0.6}
    assert {row["device_utilization"] for row in together} == {0.6}
    assert {(row["power_w"], row["sm_clock_mhz"]) for row in alone} == {(300.0, 1980.0)}
    assert all(row["foreign_load"] is None for row in alone)  # process ids are hidden
    assert "driver=580.95.05" in alone[0]["versions"]
    assert set(psutil.Process().children()) == before


def test_the_loss_of_the_driver_ends_a_campaign_with_complete_tables_and_no_worker(
    driver, tmp_path
):
    before = set(psutil.Process().children())

    def lose_the_gpu(progress: Progress) -> None:
        if progress.solo == 1:
            gone = failing(pynvml.NVML_ERROR_GPU_IS_LOST)
            driver.replace(responses(DeviceGetMemoryInfo=gone, DeviceGetUtilizationRates=gone))

    with pytest.raises(ProfilingError, match=r"GPU is lost.*run the same command again") as ended:
        run_campaign(tmp_path / "out", SETTINGS, lose_the_gpu, HASTY)

    assert "\n" not in str(ended.value)
    CampaignTables(tmp_path / "out")  # reads and checks every table that is there
    assert len(rows(tmp_path / "out", tables.EXECUTIONS)) == 1
    assert set(psutil.Process().children()) == before
