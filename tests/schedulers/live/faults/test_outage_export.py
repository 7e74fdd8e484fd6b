"""Outages of a live cluster, exported as the fault trace that the hazard model is fitted to."""

from __future__ import annotations

import json
import time

import pytest

from presage.errors import TableError
from presage.features.hazard.fault_trace import DAY_S, parse_fault_trace
from presage.pipelines.hazard.fit_hazard import read_history
from presage.schedulers.faults.fault_file import read_outages
from presage.schedulers.live.client.outage_trace import fault_trace
from presage.schedulers.live.controller.server.outage_messages import outages_response
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.cli.test_terminal import run
from tests.schedulers.clusters import cluster as devices
from tests.schedulers.live.cluster import until
from tests.schedulers.live.controller.test_core import LEASE_S, V100, World
from tests.schedulers.live.controller.test_device_outages import lose_all, report
from tests.schedulers.live.ui.stand_in import StandIn


class WithOutages(StandIn):
    """Controller that returns outages."""

    def __init__(self, outages):
        super().__init__(pb.ListResponse())
        self.outages = outages

    def Outages(self, request, context):
        return self.outages


def found_outages():
    """Return the outages of nodes a, b and c: two of b's devices overlap, c has none."""
    return pb.OutagesResponse(
        now_s=10 * DAY_S,
        nodes=["a", "b", "c"],
        devices=[
            pb.DeviceOutages(
                device_id="b/0", node="b", outages=[pb.Outage(from_s=DAY_S, until_s=2 * DAY_S)]
            ),
            pb.DeviceOutages(
                device_id="b/1", node="b",
                outages=[
                    pb.Outage(from_s=1.5 * DAY_S, until_s=3 * DAY_S), pb.Outage(from_s=9 * DAY_S)
                ],
            ),
            pb.DeviceOutages(
                device_id="GPU-1", outages=[pb.Outage(from_s=0.0, until_s=0.5 * DAY_S)]
            ),
        ],
    )  # fmt: skip


def test_outages_of_devices_are_outages_of_their_nodes():
    trace = parse_fault_trace(json.dumps(fault_trace(found_outages())))

    assert (trace.nodes, trace.days, trace.unended, trace.unstarted) == (4, 10, 1, 0)
    spans = [(one.from_s / DAY_S, one.until_s / DAY_S) for one in trace.outages]
    assert spans == [(0, 0.5), (1, 3), (9, 10)]
    assert [one.node for one in trace.outages] == [0, 1, 1]  # a GPU of a node that was removed


def test_a_trace_may_declare_its_length():
    content = fault_trace(found_outages())
    for days in (8, -1, True, "10", 1e9):
        with pytest.raises(TableError, match="days="):
            parse_fault_trace(json.dumps(content | {"days": days}))
    del content["days"]
    assert parse_fault_trace(json.dumps(content)).days == 9


def test_the_history_is_exported_with_all_nodes():
    world = World()
    report(world, "a", "GPU-1", "GPU-2")
    world.report("b", [V100], agent_id="two")
    world.now_s += LEASE_S
    lose_all(world)
    world.now_s += 50
    report(world, "renamed", "GPU-2", agent_id="three")
    response = outages_response(world.core.state, world.now_s)
    trace = parse_fault_trace(json.dumps(fault_trace(response)))

    assert {row.device_id: row.node for row in response.devices} == {
        "GPU-1": "a", "GPU-2": "renamed", "b/0": "b",
    }  # fmt: skip
    assert trace.nodes == 3
    assert sorted(one.until_s - one.from_s > 50.1 for one in trace.outages) == [False, True, True]


def test_the_command_prints_a_table_json_and_a_file(tmp_path, monkeypatch, capsys):
    file = tmp_path / "faults/fault_trace.json"
    with WithOutages(found_outages()) as controller:
        words = ("cluster", "outages", "--controller", controller.target)
        assert run(monkeypatch, *words) == 0
        table = capsys.readouterr().out
        assert run(monkeypatch, *words, "--json") == 0
        content = json.loads(capsys.readouterr().out)
        assert run(monkeypatch, *words, "--output", str(file)) == 0
        said = capsys.readouterr().out
        controller.outages = pb.OutagesResponse(now_s=5.0, nodes=["a"])
        assert run(monkeypatch, *words, "--output", str(file)) != 0
        problem = capsys.readouterr().err
        assert run(monkeypatch, *words, "--output", str(tmp_path)) != 0

    assert [line.split()[:3] for line in table.splitlines() if "b/1" in line]
    assert "down" in table
    assert content["devices"][0]["device_id"] == "b/0"
    assert "fault_trace.json: 4 nodes in 10 days" in " ".join(said.split())
    assert "no outage was recorded yet" in problem
    assert read_history(file.parent) == parse_fault_trace(file.read_text())
    assert len(read_outages(file, devices(1, 1, 1, 1), seed=0)[1]) == 3


def test_the_outage_of_a_killed_agent_is_exported_for_the_hazard_model(
    cluster, tmp_path, monkeypatch
):
    cluster.lease_s = 2.0
    cluster.up("n0", "n1")
    killed_s = time.time()
    cluster.kill("n1")
    until(lambda: any(one.state == "lost" for one in cluster.all().nodes))
    file = tmp_path / "faults/fault_trace.json"
    words = ("cluster", "outages", "--controller", cluster.target, "--output", str(file))
    assert run(monkeypatch, *words) == 0
    history = read_history(file.parent)

    (recorded,) = cluster.client.outages().devices
    assert history is not None
    assert (history.nodes, recorded.node, history.unended) == (2, "n1", 1)
    assert history.outages[0].from_s == pytest.approx(recorded.outages[0].from_s)
    assert recorded.outages[0].from_s < time.time() - killed_s + 60
    cluster.agent("n1")
    cluster.connected("n0", "n1")
    assert run(monkeypatch, *words) == 0
    history = read_history(file.parent)
    assert history is not None
    (outage,) = history.outages
    (over,) = cluster.client.outages().devices[0].outages
    assert (outage.from_s, outage.until_s) == pytest.approx((over.from_s, over.until_s))
