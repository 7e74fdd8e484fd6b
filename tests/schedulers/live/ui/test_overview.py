"""Overview of the page, from responses of a controller."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.live.controller.status_messages import redact_status
from presage.schedulers.live.ui.bars import device_bars
from presage.schedulers.live.ui.figures import clock, display_state, format_duration, size
from presage.schedulers.live.ui.overview import Query, exceeds_bounds, head_of_queue, make_overview
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.ui.stand_in import (
    GIB,
    elastic,
    explanation,
    holding,
    large,
    listing,
    node,
    running,
    told,
    waiting,
)


def view_of(found, wanted=None, whys=()):
    return make_overview(found, wanted or Query(), dict(whys))


def names(rows):
    return [row.status.job.job_id for row in rows]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2000),
            st.integers(0, 200 * GIB),
            st.floats(0, 3000),
            st.sampled_from([pb.PLACED, pb.RUNNING, pb.PAUSED, pb.LEAVING]),
        ),
        max_size=8,
    )
)
def test_segments_are_adjacent_and_within_their_bar_for_any_allocations(shares):
    rows = [
        running(str(i), milli=milli, memory_bytes=memory, usage_milli=usage, phase=phase)
        for i, (milli, memory, usage, phase) in enumerate(shares)
    ]
    first, second = device_bars(holding(node(), rows), rows)

    assert second.compute == second.memory == []
    for segments in (first.compute, first.memory):
        assert [segment.job_id for segment in segments] == [str(i) for i in range(len(rows))]
        end = 0.0
        for segment in segments:
            assert segment.at == pytest.approx(end, abs=0.02 * len(rows) + 0.01)
            assert segment.width >= 0
            assert math.isfinite(segment.used)
            end = segment.at + segment.width
        assert end <= 100 + 0.02 * len(rows)


def test_a_paused_job_holds_its_memory_and_no_compute():
    rows = [running("a", milli=1000), running("b", milli=400, phase=pb.PAUSED)]
    bar, _ = device_bars(holding(node(), rows), rows)

    assert bar.allocated_milli == 1000
    assert bar.allocated_bytes == 40 * GIB
    assert [segment.state for segment in bar.compute] == ["running", "paused"]


def test_allocations_of_unlisted_jobs_are_counted_and_drawn():
    found = listing([running("a", milli=300)], unlisted=[running("b"), running("c", milli=200)])
    view = view_of(found)
    (bar, idle) = view.nodes[0].devices

    assert (bar.allocated_milli, bar.allocated_bytes) == (900, 60 * GIB)
    assert (view.totals.allocated, view.totals.allocated_bytes) == (0.9, 60 * GIB)
    listed, rest = bar.compute
    assert (listed.job_id, rest.job_id, rest.at, rest.width) == ("a", "", 30.0, 60.0)
    assert rest.title == "60 % allocated to 2 jobs that are not listed"
    assert bar.memory[1].title == "40 GiB allocated to 2 jobs that are not listed"
    assert idle.compute == []


def test_a_job_without_a_known_run_time_has_no_progress_gauge():
    endless = told(runtime_s=math.inf)
    rows = [
        running("endless", predictions=[endless], remaining_s=0.0),
        running("placed", phase=pb.PLACED, remaining_s=0.0, elapsed_s=0.0),
        running("known"),
    ]
    assert [row.time is None for row in view_of(listing(rows)).rows] == [True, True, False]


@pytest.mark.parametrize(
    ("listed", "waiting_said"), [([running("a")], 0), ([running("a"), waiting("b", 1)], 3)]
)
def test_unlisted_jobs_count_as_waiting_only_if_a_listed_job_waits(listed, waiting_said):
    totals = view_of(listing(listed, unlisted=[running("x"), running("y")])).totals
    assert totals.unlisted == 2
    assert totals.states["waiting"] == waiting_said


def test_jobs_that_need_attention_come_first():
    found = listing(
        [
            running("b"),
            running("a", phase=pb.LEAVING),
            running("z", phase=pb.PAUSED),
            running("late", slo_violated=True),
            running("placed", phase=pb.PLACED, started_unix_s=0.0),
        ]
    )
    assert names(view_of(found).rows) == ["late", "z", "a", "placed", "b"]


def test_issues_are_lost_nodes_violated_slos_and_usage_beyond_the_forecast():
    found = listing(
        [
            running("late", reason="it was slowed down", slo_violated=True),
            running("large", memory_bytes=8 * GIB, peak_memory_bytes=9 * GIB),
            running("busy", milli=300, usage_milli=480.0),
            running("good"),
            running(
                "alone", milli=1000, usage_milli=1000.0, predictions=[pb.Prediction(kind="h100")]
            ),
        ],
        [
            node(),
            node("node-2", reason="its agent is silent for 42 s", last_report_age_s=42.0),
            node("node-10", reason="it is drained", drained=True),
        ],
    )
    seen = [(one.kind, one.name) for one in view_of(found).issues]

    assert seen == [
        ("away", "node-2"),
        ("drained", "node-10"),
        ("SLO violated", "late"),
        ("memory", "large"),
        ("busy", "busy"),
    ]


def test_everything_drawn_in_red_is_an_issue():
    jobs = [
        running("leaving", slo_violated=True, phase=pb.LEAVING),
        running("paused", slo_violated=True, phase=pb.PAUSED),
        running("slow", latency_sensitive=False, elapsed_s=5000.0, remaining_s=10.0),
        running("large", latency_sensitive=False, peak_memory_bytes=21 * GIB),
    ]
    seen = {one.name: one for one in view_of(listing(jobs)).issues}
    assert {one.kind for one in seen.values()} == {"SLO violated", "slow", "memory"}
    assert seen["slow"].detail == "takes 1 h 24 min, at most 1 h 18 min were predicted"

    for seed in range(5):
        view = view_of(large(20, 8, 30, seed=seed), Query(show_all=True))
        named = {one.name for one in view.issues}
        red = [row for row in view.rows if exceeds_bounds(row) or row.status.slo_violated]
        assert red
        assert {row.status.job.job_id for row in red} <= named
        assert {node.name for node in view.nodes if node.state != "up"} <= named


def test_a_violated_slo_is_shown_until_the_job_leaves():
    assert display_state(running("a", slo_violated=True)) == "SLO violated"
    assert display_state(running("a", slo_violated=True, phase=pb.LEAVING)) == "leaving"
    assert display_state(waiting("a", 1)) == "waiting"


def test_the_queue_is_ordered_and_has_the_reasons_that_were_requested():
    rows = [waiting("none", 0, kinds=["a100"]), *(waiting(f"q{i}", i) for i in range(30, 0, -1))]
    found = listing(rows)
    head = head_of_queue(found, Query())
    assert head == [f"q{i}" for i in range(1, 21)]

    view = view_of(found, whys=[("q1", explanation(rows[-1]))])
    assert names(view.queue) == [*(f"q{i}" for i in range(1, 31)), "none"]
    first, second = view.queue[:2]
    assert first.needs == "1 device, 60 % and 20 GiB"
    assert first.why == "no device has enough free capacity for a best-effort job"
    assert first.nearest.startswith("closest: node-00 : 0 with 35 % and 9 GiB")
    assert (second.needs, second.why) == ("1 device", "it waits behind the jobs before it")
    assert view.queue[-1].needs == "1 device, a100"


def test_recently_failed_jobs_are_issues_with_a_reason():
    found = listing(
        [running("tardy", slo_violated=True), running("large", peak_memory_bytes=21 * GIB)]
    )
    found.failed_jobs.append(
        pb.JobStatus(
            job=pb.Job(job_id="broken"), phase=pb.FAILED, reason="ended with status 3",
            ended_unix_s=1e9,
        )
    )  # fmt: skip
    view = view_of(found)

    assert [(one.name, one.kind) for one in view.issues] == [
        ("tardy", "SLO violated"), ("broken", "failed"), ("large", "memory"),
    ]  # fmt: skip
    assert view.issues[1].detail == f"ended with status 3, at {clock(1e9)}"
    assert (view.n_queue, view.totals.states["waiting"]) == (0, 0)  # it has ended


def test_words_and_a_state_filter_jobs_and_their_nodes():
    found = listing(
        [
            running("bert-1", "n1", model="bert"),
            running("unet", "n2", slo_violated=True),
            waiting("bert-2", 1),
        ],
        [node("n1"), node("n2")],
    )
    view = view_of(found, Query("BERT"))
    assert (names(view.rows), names(view.queue)) == (["bert-1"], ["bert-2"])
    assert [one.name for one in view.nodes] == ["n1"]
    assert names(view_of(found, Query("n2")).rows) == ["unet"]
    view = view_of(found, Query(state="SLO violated"))
    assert (names(view.rows), names(view.queue)) == (["unet"], [])
    assert view.totals.states["running"] == 1  # of the whole cluster, whatever the filter


def test_a_large_cluster_is_summarised_and_shown_completely_on_request():
    found = large(60, 8, 500)
    view = view_of(found)

    assert (len(view.nodes), view.n_nodes, view.n_devices) == (25, 60, 480)
    assert [one.state for one in view.nodes[:2]] == ["away", "drained"]
    assert len(view.rows) == 250 < view.n_rows
    assert (len(view.queue), view.n_queue) == (200, 500)
    assert view.totals.devices == 480
    everything = view_of(found, Query(show_all=True))
    assert (len(everything.nodes), len(everything.queue)) == (60, 500)
    assert len(everything.rows) == view.n_rows


def test_nodes_are_sorted_by_the_numbers_in_their_names():
    found = listing(nodes=[node(name) for name in ("n10", "n9", "a", "7", "n9b", "²")])
    assert [one.name for one in view_of(found).nodes] == ["7", "a", "n9", "n9b", "n10", "²"]


def test_implausible_values_of_a_controller_are_shown_without_an_error():
    found = listing(
        [
            running("nowhere", "gone", devices=(0,)),
            running("ninth", devices=(9,)),
            running("none", devices=()),
            running("nan", usage_milli=math.nan, remaining_s=math.nan),
            running(
                "zero", milli=0, memory_bytes=0, predictions=[told(memory_bytes=0, runtime_s=0.0)]
            ),
        ],
        [node(), node("empty", 0)],
    )
    view = view_of(found)
    assert view.n_rows == 5
    assert view_of(pb.ListResponse()).n_nodes == 0


def test_durations_and_sizes_are_rounded_for_display():
    assert [format_duration(s) for s in (0, 0.04, 0.5, 59.6, 61, 754, 5400, math.inf)] == [
        "0 s", "0 s", "0.5 s", "1 min", "1 min 1 s", "13 min", "1 h 30 min", "-",
    ]  # fmt: skip
    assert [size(n) for n in (0, 1, 5 << 20, 3 << 29, 80 * GIB, 3 << 40)] == [
        "0 MiB", "1 MiB", "5 MiB", "1.5 GiB", "80 GiB", "3 TiB",
    ]  # fmt: skip


def test_an_elastic_job_is_on_each_of_its_devices_and_once_in_the_list():
    job = elastic(
        "spirals", [("n0", 0), ("n0", 1), ("n1", 0)], usage_milli=2400.0, peak_memory_bytes=90 * GIB
    )
    view = view_of(listing([job], [node("n0"), node("n1")]))

    on_devices = [[one.worker for one in bar.compute] for row in view.nodes for bar in row.devices]
    assert on_devices == [["m1"], ["m2"], ["m3"], []]
    bar = view.nodes[0].devices[0]
    assert (bar.allocated_milli, bar.used_milli) == (1000, 800)
    assert bar.compute[0].title == "spirals m1: 100 % allocated, 80 % used"
    (row,) = view.rows
    assert (row.where, row.size, row.usage_milli) == ("n0 x2, n1", "3 of 1-4", 800)
    assert row.allocated_bytes == 240 * GIB
    assert bar.memory[0].title.endswith("used, peak 30 GiB")
    assert view.totals.states["running"] == 1
    assert (view.totals.allocated, view.totals.used) == (3, pytest.approx(2.4))


def test_a_leaving_worker_is_drawn_and_its_device_counts_as_free():
    job = elastic("spirals", [("n0", 0), ("n0", 1, "leaving")])
    next_job = running("next", "n0", (1,), milli=1000, memory_bytes=80 * GIB)
    view = view_of(listing([job], [node("n0")], unlisted=[next_job]))
    bar = view.nodes[0].devices[1]

    assert [(one.job_id, one.state) for one in bar.compute] == [
        ("spirals", "leaving"), ("", "unlisted")
    ]  # fmt: skip
    assert (bar.allocated_milli, bar.allocated_bytes) == (1000, 80 * GIB)
    assert (view.rows[0].where, view.rows[0].size) == ("n0", "1 of 1-4")


def test_an_elastic_job_is_found_by_each_of_its_nodes_and_waits_for_its_range():
    job = elastic("spirals", [("n0", 0), ("n1", 0)])
    waits = elastic("later", [], phase=pb.WAITING, queue_position=1)
    found = listing([job, waits], [node("n0"), node("n1"), node("n2")])

    for name in ("n0", "n1"):
        assert names(view_of(found, Query(name)).rows) == ["spirals"]
    assert [one.name for one in view_of(found, Query("spirals")).nodes] == ["n0", "n1"]
    assert names(view_of(found, Query("n2")).rows) == []
    assert [one.needs for one in view_of(found).queue] == ["1-4 devices"]


def test_other_users_see_the_nodes_of_workers_and_no_reasons():
    job = elastic("spirals", [("n0", 0)], [(5, 1, "secret")], model="secret", reason="secret")
    seen = redact_status(job)

    assert "secret" not in str(seen)
    assert [(one.name, one.node, one.state) for one in seen.members] == [("m1", "n0", "member")]
    assert [change.gpus for change in seen.sizes] == [1]
    view = view_of(listing([seen], [node("n0")]))
    assert (view.rows[0].where, view.rows[0].size) == ("n0", "1 of 1-4")
    assert "secret" not in str(view)


def test_a_withdrawn_device_needs_attention():
    found = listing([], nodes=[node("node-00")])
    found.nodes[0].devices[1].reason = "it failed: Xid 79: the GPU has fallen off the bus"
    view = view_of(found)

    assert [one.problem != "" for one in view.nodes[0].devices] == [False, True]
    assert [one[:3] for one in view.issues] == [("node-00/1", False, "withdrawn")]
    assert view.nodes[0].state == "up"
