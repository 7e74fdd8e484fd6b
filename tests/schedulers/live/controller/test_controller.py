"""Tests of the controller with a journal on disk: restarts, leases, metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from presage.errors import JournalError, RefusedAgentError, ServiceError
from presage.features.hazard.hazard_model import HazardModel
from presage.schedulers.core.action import Start
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State
from presage.schedulers.forecasters import prediction_cache as fresh_forecasts
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.forecasters.outage_hazards import OutageHazards
from presage.schedulers.live.controller.cluster_metrics import UPDATE_INTERVAL_S, ClusterMetrics
from presage.schedulers.live.controller.controller import Controller, Leases
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.live.controller.journal.records import Record
from presage.schedulers.live.controller.server.job_logs import Logs
from presage.schedulers.live.controller.server.node_service import _Stream
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.policies.best_fit import BestFit
from presage.schedulers.policies.sharing.sharing_policy import Sharing
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.callers import Caller
from presage.serving.server.log import LOGGER
from tests.support.waiting import async_stays_true, async_wait_until

GIB = 2**30


def controller(
    journal: Journal, *, snapshot_records: int = 1000, max_ended_jobs: int = 1000
) -> Controller:
    return Controller(
        journal, BestFit(), NoForecasts, Leases(),
        snapshot_records=snapshot_records, max_ended_jobs=max_ended_jobs,
    )  # fmt: skip


def test_metrics_count_jobs_nodes_and_decisions(tmp_path: Path):
    registry = CollectorRegistry()
    metrics = ClusterMetrics(registry)
    with Journal.open(f"{tmp_path}/journal.db") as journal:
        working = Controller(journal, BestFit(), NoForecasts, Leases(), metrics=metrics)
        asyncio.run(lived(working, ["one", "two"]))
        metrics.update(working.core, working.now_s() + UPDATE_INTERVAL_S)

    def shown(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"presage_cluster_{name}", labels)

    assert shown("jobs", stage="finished") == 2
    assert shown("jobs", stage="waiting") == 0
    assert (shown("nodes", schedulable="true"), shown("nodes", schedulable="false")) == (1, 0)
    assert shown("slo_violated_jobs") == 0
    assert shown("records_total", type="Placed") == 2
    assert (shown("decision_seconds_count") or 0) >= 2


class Away(NoForecasts):
    """Forecaster whose first three requests fail."""

    asked = 0

    def predictions(self, asked: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        Away.asked += 1
        if Away.asked <= 3:
            raise ServiceError("no response")
        return [None] * len(asked)


def test_a_failing_forecaster_and_its_recovery_are_logged_once(tmp_path: Path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger(LOGGER), "propagate", True)
    monkeypatch.setattr(fresh_forecasts, "RETRY_S", 0.0)
    monkeypatch.setattr(fresh_forecasts, "MOST_RETRY_S", 0.0)
    caplog.set_level(logging.INFO, LOGGER)
    with Journal.open(f"{tmp_path}/journal.db") as journal:
        working = Controller(
            journal, Sharing().controller_policy(), Away, Leases(), max_ended_jobs=3
        )
        asyncio.run(lived(working, [str(number) for number in range(6)]))

    messages = [record.message for record in caplog.records]
    messages = [one for one in messages if "forecasts" in one]
    assert messages == ["no forecasts", "forecasts are available again"]


class Careful(BestFit):
    """Policy that records the hazards that it reads."""

    def __init__(self, *, declares: bool) -> None:
        self.needs = replace(BestFit.needs, hazards=declares)
        self.hazard = -1.0

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        self.hazard = forecasts.hazard(state, 0, 86_400.0).probability
        return super().decide(state, forecasts, rng)


@pytest.mark.parametrize(
    ("declares", "model", "low", "high"),
    [
        (True, HazardModel(1e3, 0.0, ()), 1.0, 1.0),
        (True, HazardModel(1e-9, 0.0, ()), 1e-10, 1e-8),
        (True, None, 1e-5, 0.1),
        (False, HazardModel(1e3, 0.0, ()), 0.0, 0.0),
    ],
    ids=["high", "low", "pretrained", "not declared"],
)
def test_a_policy_reads_the_hazards_of_the_given_model_or_of_the_pretrained_one(
    tmp_path: Path, declares: bool, model: HazardModel | None, low: float, high: float
):
    policy = Careful(declares=declares)
    hazards = None if model is None else OutageHazards(model)
    with Journal.open(f"{tmp_path}/journal.db") as journal:
        working = Controller(journal, policy, NoForecasts, Leases(), hazards=hazards)
        asyncio.run(lived(working, ["one"]))

    assert low <= policy.hazard <= high


def report(number: int, *ended: tuple[str, int]) -> pb.NodeReport:
    tasks = [
        pb.Task(
            job_id=name, attempt=attempt, phase=pb.TASK_ENDED, ran_s=1.0,
            exit=pb.Exit(finished=True),
        )
        for name, attempt in ended
    ]  # fmt: skip
    device = pb.Device(kind="v100", memory_bytes=16 * GIB)
    return pb.NodeReport(node="a", agent_id="a", number=number, devices=[device], tasks=tasks)


def _submit(
    one: SubmittedJob, core: Core, now_s: float, now_unix_s: float
) -> tuple[list[Record], list[str]]:
    return core.submit([one], now_s, now_unix_s)


async def lived(working: Controller, names: list[str]) -> None:
    """Submit jobs, run them one by one, and end them."""
    await working.begin()
    running = asyncio.create_task(working.run())
    for number, name in enumerate(names):
        one = SubmittedJob(Job(name, 0.0), ("train",))
        await working.change(partial(_submit, one))
        await working.report(report(2 * number))
        await async_wait_until(lambda: working.core.state.at_node.get("a"))
        attempt = working.core.state.jobs[name].attempt
        await working.report(report(2 * number + 1, (name, attempt)))
    await async_wait_until(lambda: len(working.core.state.ended) <= 3)
    running.cancel()


@pytest.mark.parametrize("snapshot_records", [1, 4, 1000])
def test_a_controller_restores_its_state_from_the_snapshot_and_later_entries(
    tmp_path: Path, snapshot_records: int
):
    url = f"{tmp_path}/journal.db"
    names = [f"job-{number}" for number in range(8)]
    with Journal.open(url) as journal:
        first = controller(journal, snapshot_records=snapshot_records, max_ended_jobs=3)
        asyncio.run(lived(first, names))
        state = first.core.state
    assert list(state.jobs) == names[-3:]
    with Journal.open(url) as journal:
        assert bool(journal.load()[0]) == (snapshot_records < 1000)
        again = controller(journal, snapshot_records=snapshot_records, max_ended_jobs=3)
        assert again.core.state == state
        asyncio.run(lived(again, ["job-0", "new"]))  # of a name that was forgotten
        assert again.core.state.jobs["job-0"].attempt > 1
        assert again.core.state.jobs["job-0"].starts == 1


def test_a_failed_snapshot_is_retried(tmp_path: Path, monkeypatch):
    url = f"{tmp_path}/journal.db"
    with Journal.open(url) as journal:
        first = controller(journal, snapshot_records=2)
        save = journal.save
        failed: list[int] = []

        def fails_once(rows: Mapping[str, Any], seq: int) -> None:
            if not failed:
                failed.append(seq)
                raise JournalError("the disk is full")
            save(rows, seq)

        monkeypatch.setattr(journal, "save", fails_once)
        asyncio.run(lived(first, ["one", "two", "three"]))
        assert failed
    with Journal.open(url) as journal:
        assert controller(journal).core.state == first.core.state


def test_leases_are_renewed_only_while_this_controller_owns_the_journal(
    tmp_path: Path, monkeypatch
):
    async def main() -> None:
        with Journal.open(f"{tmp_path}/journal.db") as journal:
            working = controller(journal)
            await working.begin()
            assert not await working.report(report(1))  # before the first check of the journal
            running = asyncio.create_task(working.run())
            await async_wait_until(lambda: working.report(report(2)))

            def taken() -> None:
                journal.close()
                raise JournalError("another controller has it")

            monkeypatch.setattr(journal, "check", taken)
            with pytest.raises(JournalError, match="another controller"):
                await running  # ends the process

    asyncio.run(main())


def test_a_rejected_agent_leaves_no_record(tmp_path: Path):
    async def refused(working: Controller) -> None:
        await working.begin()
        await working.report(report(1))
        other = report(1)
        other.node, other.devices[0].memory_bytes = "b", 1
        with pytest.raises(RefusedAgentError, match="set the same size with --memory-gib"):
            await working.report(other)
        assert list(working.core.state.nodes) == list(working.core.nodes) == ["a"]

    with Journal.open(f"{tmp_path}/journal.db") as journal:
        asyncio.run(refused(controller(journal)))


def test_commands_are_sent_only_with_a_lease(tmp_path: Path):
    async def attached(working: Controller) -> pb.NodeCommands:
        await working.begin()
        stream = _Stream(working, Logs(working), Caller("n0", frozenset({"agent"})))
        await stream.receive(report(1))  # before the ownership of the journal is checked
        commands = stream.commands(asyncio.create_task(asyncio.sleep(60)))
        first = asyncio.create_task(anext(commands))
        assert await async_stays_true(lambda: not first.done(), 0.1)
        running = asyncio.create_task(working.run())
        await async_wait_until(lambda: working.report(report(2)))
        await stream.receive(report(3))
        running.cancel()
        return await first

    with Journal.open(f"{tmp_path}/journal.db") as journal:
        orders = asyncio.run(attached(controller(journal)))
    assert orders.report_number == 3
    assert orders.lease_s > 0
