"""Tests of explanations: summaries, candidates and placement reasons."""

from __future__ import annotations

from typing import get_args

import pytest

from presage.errors import ServiceError
from presage.schedulers.live.controller.explanations.event_sentences import event_details
from presage.schedulers.live.controller.explanations.explain import (
    MAX_CANDIDATES,
    find_candidates,
    summarize_job,
)
from presage.schedulers.live.controller.journal.records import (
    Placed,
    Record,
    record_from_json,
    record_to_json,
)
from presage.schedulers.policies.bin_packing import BinPacking
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.packing.packing_policy import Packing
from presage.schedulers.policies.sharing.sharing_policy import Sharing
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.controller.test_core import GIB, K80, V100, World, ended, task


def why(world, name):
    return summarize_job(world.core, world.core.state.jobs[name], 0, world.now_s)


def verdicts(world, name):
    rows = find_candidates(world.core, world.core.state.jobs[name], world.now_s)
    return {(row.node, row.device): row.verdict for row in rows}


def test_a_gang_fits_only_on_a_node_with_all_of_its_devices():
    world = World()
    for node in "ab":
        world.submit(f"on-{node}")
        world.report(node, [V100] * 2, agent_id=node)
        world.write([Placed(f"on-{node}", 1, node, [[0, 1000, 16 * GIB]], [], 0.0)])
    world.core.discard_decision()
    world.submit("gang", gpus=2)

    assert verdicts(world, "gang") == {
        ("a", 1): "fits, but its node has 1 of 2",
        ("b", 1): "fits, but its node has 1 of 2",
        ("a", 0): "too little free compute",
        ("b", 0): "too little free compute",
    }
    assert why(world, "gang") == (
        "it waits: no node has 2 devices with enough free capacity for a best-effort job"
    )


def test_a_node_with_all_of_a_gangs_devices_is_found_among_many_with_too_few():
    world = World()
    for number in range(MAX_CANDIDATES + 1):
        world.report(f"n{number:02d}", [V100], agent_id=str(number))
    world.report("wide", [V100] * 2, agent_id="wide")
    world.submit("gang", gpus=2)

    found = verdicts(world, "gang")
    assert len(found) == MAX_CANDIDATES
    assert list(found)[:2] == [("wide", 0), ("wide", 1)]
    assert why(world, "gang") == "it waits: jobs before it in the queue have priority"


def test_devices_of_other_kinds_are_not_candidates():
    world = World()
    for number in range(MAX_CANDIDATES + 1):
        world.report(f"n{number:02d}", [V100], agent_id=str(number))
    world.report("old", [K80], agent_id="old")
    world.submit("job", model="300", kinds=("k80",))

    assert verdicts(world, "job") == {("old", 0): "fits"}
    assert why(world, "job") == "it waits: jobs before it in the queue have priority"


def test_a_job_that_fits_waits_for_jobs_before_it():
    world = World()
    world.submit("holds")
    world.report("a", [V100] * 2)
    world.decide()
    world.submit("gang", gpus=2)
    world.submit("small", model="300")
    world.decide()  # the node is drained for the gang

    assert verdicts(world, "small")["a", 1] == "fits"
    assert why(world, "small") == "it waits: jobs before it in the queue have priority"


def test_the_summary_of_a_running_job_uses_the_agents_report():
    world = World()
    world.report("a", [V100] * 2)
    world.submit("job", model="300", latency_sensitive=True)
    world.decide()
    only = (
        "; when it was placed, no other node had free capacity for 30 % and 4,096 MiB of a device"
    )
    assert why(world, "job") == f"it is assigned to node a with 30 % of device 0, attempt 1{only}"

    moved = task("job", slo_violated=True, reason="given 90 % of the device")
    moved.allocations.append(pb.Allocation(device=1, compute_milli=900, memory_bytes=4 * GIB))
    world.report("a", [V100] * 2, tasks=[moved])
    assert why(world, "job") == (
        "it runs on node a with 90 % of device 1, attempt 1; its SLO is violated: "
        f"given 90 % of the device{only}"
    )
    assert verdicts(world, "job") == {("a", 1): "it is here", ("a", 0): "fits"}
    moved.phase, moved.slo_violated, moved.reason = (
        pb.TASK_PAUSED,
        False,
        "paused: busier than predicted",
    )
    world.report("a", [V100] * 2, tasks=[moved])
    assert why(world, "job").startswith("it is paused on node a with 90 % of device 1, attempt 1: ")


@pytest.mark.parametrize(
    ("policy", "needs"), [(Fifo(), 1000), (BinPacking(), 500), (Packing(), 300), (Sharing(), 300)]
)
def test_candidates_show_the_demand_under_the_policy(policy, needs):
    world = World(policy)
    world.submit("job", model="300", compute_milli=500)
    world.report("a", [V100])

    (row,) = find_candidates(world.core, world.core.state.jobs["job"], world.now_s)
    assert row.required_compute_milli == needs


class Unreachable:
    """Forecaster that cannot be reached."""

    def predictions(self, asked):
        raise ServiceError("connection refused")


def chosen(world, name):
    return world.core.state.jobs[name].placement_reason


def test_the_reason_of_a_placement_is_stored_and_shown_in_the_history():
    world = World()
    for node in ("a", "b", "c"):
        world.report(node, agent_id=node)
    world.submit("first", "second", model="300")
    world.decide()

    capacity = (
        "nodes had free capacity for 30 % and 4,096 MiB of a device, and this one has the device "
        "with the most free compute, 100 %"
    )
    assert chosen(world, "first") == f"3 {capacity}"
    assert chosen(world, "second") == f"3 {capacity}"
    assert world.core.state.jobs["second"].node == "b"  # the first job was placed before it
    assert world.begin().state.jobs["first"].placement_reason == chosen(world, "first")
    (placed,) = [record_from_json(row) for row in world.rows if row.get("job_id") == "first"][1:]
    assert event_details(placed) == f"30 % of device 0; {chosen(world, 'first')}"


def test_every_type_of_record_has_details():
    known = set(event_details.registry) - {object}
    assert known == set(get_args(Record))


def test_a_record_without_a_reason_can_be_read():
    before = Placed("job", 1, "a", [[0, 300, GIB]], [], 0.0)
    row = record_to_json(before)
    del row["reason"]
    assert record_from_json(row) == before


def test_the_reason_names_the_jobs_that_free_capacity():
    world = World()
    world.report("a")
    world.submit("keeps", model="600")
    world.submit("small", model="300")
    world.decide()
    world.submit("urgent", model="900", latency_sensitive=True)
    world.decide()

    assert chosen(world, "urgent") == (
        "no node had free capacity for 90 % and 4,096 MiB of a device: keeps ends, small is shrunk"
    )


def test_a_job_that_resumes_on_its_devices_shows_that():
    world = World()
    world.report("a")
    world.submit("moved", model="900")
    world.decide()
    gone = ended("moved", requested=True, reason="too little is left")
    gone.allocations.extend([pb.Allocation(device=0, compute_milli=900, memory_bytes=4 * GIB)])
    world.report("a", tasks=[gone])
    world.decide()

    assert chosen(world, "moved") == "it ran there before"


@pytest.mark.parametrize(
    ("policy", "model", "wanted"),
    [
        (Sharing(), "", "an exclusive device, because there is no forecast"),
        (Fifo(), "", "an exclusive device"),
        (Fifo(), "300", "an exclusive device"),
        (BinPacking(), "", "50 % and 8.0 GiB of a device"),
    ],
)
def test_the_reason_states_the_demand_under_the_policy(policy, model, wanted):
    world = World(policy)
    world.report("a")
    world.submit("job", model=model, compute_milli=500)
    world.decide()

    assert chosen(world, "job") == f"no other node had free capacity for {wanted}"


def test_a_waiting_job_shows_current_predictions():
    world = World()
    world.report("a", [V100, K80])
    world.submit("job", model="300")
    (v100, k80) = world.core.view(0.0).predictions(world.core.state.jobs["job"].submitted.job)

    assert (v100.kind, v100.compute_milli, v100.runtime_s, v100.slo_s) == (
        "v100", 300, 100.0, 120.0,
    )  # fmt: skip
    assert (k80.kind, k80.runtime_s) == ("k80", 200.0)


def test_a_forecaster_failure_is_shown_for_waiting_jobs():
    world = World()
    world.report("a")
    world.submit("holds", "waits")
    world.decide()
    world.core.view(0.0).forecasts.failures["connection refused"] = 3

    assert why(world, "waits") == (
        "it waits: no device has enough free capacity for a best-effort job; "
        "no forecasts are available (connection refused)"
    )


def test_the_reason_retains_the_forecaster_failure_at_the_placement():
    world = World(forecaster=Unreachable())
    world.report("a", [V100] * 2)
    world.submit("described", model="1000")
    world.submit("bare")
    world.decide()

    whole = "an exclusive device, because there is no forecast"
    assert f"had free capacity for {whole} (connection refused)" in chosen(world, "described")
    # A job without features has no forecast in any case.
    assert chosen(world, "bare") == f"no other node had free capacity for {whole}"
    assert "(connection refused)" in why(world, "described")


def test_devices_on_which_a_job_ran_out_of_memory_are_not_candidates():
    world = World()
    world.report("a", [K80])
    world.report("b", agent_id="two")
    world.submit("grows", model="300", kinds=("k80",))
    world.core.state.jobs["grows"].small_bytes = 12 * GIB
    world.core.discard_decision()

    assert verdicts(world, "grows") == {}


def test_the_summary_lists_why_each_node_gets_no_jobs():
    world = World()
    world.submit("job", model="300")
    assert why(world, "job") == "it waits: no node has joined"
    for node in ("n0", "n1", "n2", "ng"):
        world.report(node, agent_id=node)
    for node in ("n0", "n1"):
        world.write(world.core.drain(node, undo=False, evict=False, now_s=0.0))
    world.now_s = 25.0
    for node in ("n0", "n1"):
        world.report(node, agent_id=node)
    world.report("n2", agent_id="n2", problem="its disk is full")

    assert why(world, "job") == (
        "it waits: no node gets jobs: n0, n1 drained; n2 can start no job: its disk is full; "
        "ng has been silent for 25 s"
    )


def test_the_summary_names_a_few_of_many_unavailable_nodes():
    world = World()
    world.submit("job", model="300")
    for number in range(40):
        world.now_s = float(number)
        world.report(f"n{number:02d}", agent_id=str(number))
        if number < 20:
            world.write(world.core.drain(f"n{number:02d}", undo=False, evict=False, now_s=0.0))
    world.now_s = 60.0

    summary = why(world, "job")
    assert summary.startswith(
        "it waits: no node gets jobs: n00 has been silent for 60 s; n01 has been silent for 59 s"
    )
    assert summary.endswith("; 36 others")
    for number in range(20):
        world.report(f"n{number:02d}", agent_id=str(number))
    assert "n00, n01, n02, n03 and 16 more drained; " in why(world, "job")


def test_the_summary_of_a_job_on_a_silent_node_states_when_it_is_requeued():
    world = World()
    world.report("a")
    world.submit("job", model="300")
    world.decide()
    world.report("a", tasks=[task("job")])
    world.now_s = 9.0
    assert "reported" not in why(world, "job")  # a recent report is not mentioned

    world.now_s = 30.0
    assert why(world, "job").startswith(
        "it runs on node a with 30 % of device 0, attempt 1; that node has not reported for "
        "30 s, after 35 s it returns to the queue"
    )
    world.now_s = 34.9
    assert world.core.find_lost(world.now_s, 0.0) == []
    world.now_s = 35.0
    assert world.write(world.core.find_lost(world.now_s, 0.0)) == ["NodeLost", "Requeued"]

    world = World()
    world.report("a")
    world.submit("job", model="300")
    world.decide()
    world.write(world.core.cancel(["job"], 0.0, 0.0))
    world.now_s = 30.0
    assert "after 35 s it counts as cancelled" in why(world, "job")
