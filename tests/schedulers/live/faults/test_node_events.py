"""Events of nodes that fail and return, by a controller in this process."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from presage.cli.scheduling.cluster.processes.controller import _notifying
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.live.controller import controller as module
from presage.schedulers.live.controller.cluster_metrics import ClusterMetrics
from presage.schedulers.live.controller.controller import Controller, Leases
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.policies.best_fit import BestFit
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.notifications.cloud_event import CloudEvent
from presage.system.notifications.webhook import configured_webhook
from tests.system.notifications.receiver import receiver

GIB = 2**30


def report(node: str, number: int, devices: int = 1) -> pb.NodeReport:
    device = pb.Device(kind="v100", memory_bytes=16 * GIB)
    return pb.NodeReport(node=node, agent_id=node, number=number, devices=[device] * devices)


async def _lose(working: Controller, *names: str) -> None:
    """Let the time of the nodes run out, and the controller find it."""
    for name in names:
        working.core.nodes[name].reported_s -= 10_000.0
    await working._step()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.05)


def test_a_node_fails_and_returns_with_one_event_each(tmp_path: Path):
    path, events = f"{tmp_path}/journal.db", list[CloudEvent]()
    seen: list[str] = []

    async def main() -> None:
        with Journal.open(path) as journal:

            def notify(event: CloudEvent) -> None:
                events.append(event)
                seen.append(list(journal.read(0))[-1].record["type"])

            working = Controller(journal, BestFit(), NoForecasts, Leases(), notify=notify)
            await working.begin()
            await working.report(report("a", 1))
            await working.report(report("b", 1))
            await working.report(report("b", 2, devices=2))  # changed, but never lost
            await _lose(working, "a")
            await _lose(working)
            await working.report(report("a", 2))
            await working.report(report("a", 3))

    asyncio.run(main())
    assert [(event.type, event.subject) for event in events] == [
        ("presage.node.failed", "a"), ("presage.node.back", "a"),
    ]  # fmt: skip
    assert events[0].data == {"node": "a", "devices": 1, "jobs": []}
    assert events[1].data.keys() == {"node", "devices", "lost_for_s"}
    assert events[0].source.startswith("/presage/clusters/")
    assert seen == ["NodeLost", "NodeJoined"]  # in the journal before the event is sent

    async def again() -> None:
        with Journal.open(path) as journal:
            working = Controller(journal, BestFit(), NoForecasts, Leases(), notify=events.append)
            await working.begin()
            await working.report(report("a", 1))

    asyncio.run(again())
    assert len(events) == 2  # a restart repeats none


def test_a_receiver_that_hangs_does_not_delay_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("presage.system.notifications.event_sender.MAX_QUEUED", 1000)
    monkeypatch.setattr("presage.cli.scheduling.cluster.processes.controller._FLUSH_S", 0.1)
    released, registry = threading.Event(), CollectorRegistry()
    metrics = ClusterMetrics(registry)
    names = [f"n{i}" for i in range(2_000)]

    async def main(notify: Any) -> float:
        with Journal.open(f"{tmp_path}/journal.db") as journal:
            working = Controller(
                journal, BestFit(), NoForecasts, Leases(), metrics=metrics, notify=notify
            )
            await working.begin()
            for name in names[:20]:
                await working.report(report(name, 1))
            records = [module_record(name) for name in names]
            await working.change(lambda *_: (records, None))
            begin_s = time.monotonic()
            await _lose(working, *names)
            return time.monotonic() - begin_s

    def module_record(name: str) -> Any:
        from presage.schedulers.live.controller.journal.records import NodeJoined

        return NodeJoined(name, name, [["v100", GIB]], 0.0)

    with receiver() as server:
        server.before_answer = lambda: released.wait(30)
        webhook = configured_webhook({"PRESAGE_WEBHOOK": server.url})
        with _notifying(webhook, metrics) as notify:
            took_s = asyncio.run(main(notify))
        assert took_s < 30  # 2,000 requests would take more than an hour
        released.set()

    def counted(result: str) -> float:
        return registry.get_sample_value(
            "presage_cluster_webhook_events_total", {"result": result}
        ) or 0.0  # fmt: skip

    assert 990 <= counted("dropped") <= 1000
    assert registry.get_sample_value("presage_cluster_lost_nodes") == 2000
    assert json.loads(server.requests[0][1])["type"] == "presage.node.failed"
