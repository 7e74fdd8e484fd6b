"""Recording of samples by a controller with a journal, and access to them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from presage.errors import ServiceError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.live.controller.controller import Controller, Leases
from presage.schedulers.live.controller.history.history_file import HistoryFile
from presage.schedulers.live.controller.history.history_recorder import HistoryRecorder
from presage.schedulers.live.controller.history.history_sample import Sampler
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.live.controller.server import history_calls
from presage.schedulers.live.controller.server.cluster_service import ClusterService
from presage.schedulers.live.protocol.forecast_error import forecast_error
from presage.schedulers.policies.best_fit import BestFit
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.callers import Caller
from presage.serving.server.call import Call
from presage.serving.server.log import LOGGER
from tests.schedulers.live.controller.test_controller import lived

NOW_S = 29_000_000 * 60.0


def by(*roles: str) -> Call:
    return Call("", "", Caller("ann", frozenset(roles)))


def test_a_controller_records_its_use_its_queue_and_the_jobs_that_ended(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(history_calls, "time", SimpleNamespace(time=lambda: NOW_S))

    async def recorded(working: Controller, file: HistoryFile) -> pb.HistoryResponse:
        recorder = HistoryRecorder(working, file, clock=lambda: NOW_S)
        await lived(working, ["one", "two"])
        running = pb.Task(
            job_id="three", attempt=1, phase=pb.TASK_RUNNING, usage_milli=400.0, slo_violated=True,
            allocations=[pb.Allocation(device=0, compute_milli=FULL_DEVICE_MILLI)],
        )  # fmt: skip
        node = working.core.nodes["a"]
        node.tasks = {"three": running}
        node.report = pb.NodeReport(devices=[pb.Device(temperature_c=61.0, power_w=412.5)])
        await recorder.record()
        await recorder.record()  # the same minute
        service = ClusterService(working, None, None, "fifo", file)  # type: ignore[arg-type]
        request = pb.HistoryRequest(from_unix_s=NOW_S - 60, to_unix_s=NOW_S + 60)
        content = await service.history(request.SerializeToString(), by("admin"))
        hidden = await service.history(request.SerializeToString(), by("view", "submit"))
        assert not pb.HistoryResponse.FromString(hidden).points[0].HasField("forecast_errors")
        return pb.HistoryResponse.FromString(content)

    with (
        Journal.open(f"{tmp_path}/journal.db") as journal,
        HistoryFile(tmp_path / "history") as file,
    ):
        working = Controller(journal, BestFit(), NoForecasts, Leases())
        (point,) = asyncio.run(recorded(working, file)).points

    assert (point.finished_jobs, point.failed_jobs) == (2, 0)
    assert (point.devices.mean, point.devices_in_use.mean) == (1, 1)
    assert (point.allocated_devices.mean, point.used_devices.mean) == (1, 0.4)
    assert (point.slo_violated_jobs.mean, point.waiting_jobs.mean) == (1, 0)
    assert (point.hottest_c.mean, point.power_w.mean) == (61.0, 412.5)
    assert (point.time_unix_s, point.samples) == (NOW_S, 1)
    assert point.forecast_errors.jobs == 0  # without forecasts


def test_ended_jobs_count_once(tmp_path: Path):
    with Journal.open(f"{tmp_path}/journal.db") as journal:
        working = Controller(journal, BestFit(), NoForecasts, Leases())
        sampler = Sampler(working.now_s())
        asyncio.run(lived(working, ["one", "two"]))
        found = [sampler.snapshot(working.core, working.now_s()).sample() for _ in range(2)]
    assert [one.finished_jobs for one in found] == [2, 0]


def test_a_snapshot_does_not_change_with_the_cluster(tmp_path: Path):
    with Journal.open(f"{tmp_path}/journal.db") as journal:
        working = Controller(journal, BestFit(), NoForecasts, Leases())
        asyncio.run(lived(working, ["one"]))
        running = pb.Task(
            job_id="two", phase=pb.TASK_RUNNING, allocations=[pb.Allocation(device=0)]
        )
        working.core.nodes["a"].tasks = {"two": running}
        snapshot = Sampler(working.now_s()).snapshot(working.core, working.now_s())
        working.core.nodes["a"].tasks = {}
        working.core.state.nodes["a"].lost = True
        assert (snapshot.sample().devices, snapshot.sample().devices_in_use) == (1, 1)


def test_a_disk_that_fails_is_logged_once_and_costs_samples_only(
    tmp_path: Path, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger(LOGGER), "propagate", True)
    caplog.set_level(logging.INFO, LOGGER)

    class Failing:
        failing = True

        def append(self, _row: object) -> bool:
            if self.failing:
                raise OSError(28, "No space left on device")
            return True

    async def recorded(working: Any, file: Any) -> None:
        recorder = HistoryRecorder(working, file)
        await recorder.record()
        await recorder.record()
        file.failing = False
        await recorder.record()

    with Journal.open(f"{tmp_path}/journal.db") as journal:
        asyncio.run(recorded(Controller(journal, BestFit(), NoForecasts, Leases()), Failing()))
    assert [one.message for one in caplog.records if "history" in one.message] == [
        "history: samples are not written", "history: samples are written again",
    ]  # fmt: skip


def test_a_controller_without_a_history_says_so():
    service = ClusterService(None, None, None, "fifo")  # type: ignore[arg-type]
    with pytest.raises(ServiceError, match="this controller records no history"):
        asyncio.run(service.history(b"", by("view")))


def test_errors_are_relative_to_the_measured_run_time():
    prediction = pb.Prediction(kind="h100", runtime_s=110.0, slo_s=130.0, is_predicted=True)
    error = forecast_error(prediction, 100.0)
    assert error is not None
    assert error.relative == pytest.approx(0.1)
    assert not error.exceeds_bound
    late = forecast_error(prediction, 200.0)
    assert late is not None
    assert late.relative == pytest.approx(-0.45)
    assert late.exceeds_bound
    assert forecast_error(pb.Prediction(runtime_s=5.0), 10.0) is None
    assert forecast_error(prediction, 0.0) is None
    assert forecast_error(None, 10.0) is None
