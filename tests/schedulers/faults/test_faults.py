"""Faults: the published trace on any cluster, files of the user, and distributions."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import ConfigError, TableError
from presage.features.hazard.fault_trace import DAY_S, NODES, parse_fault_trace
from presage.features.hazard.outage import Outage, merge_outages
from presage.schedulers.core.job import Checkpointing
from presage.schedulers.core.job_status import Phase
from presage.schedulers.faults.fault import (
    Fault,
    faults_to_outages,
    outages_to_faults,
)
from presage.schedulers.faults.fault_file import read_faults
from presage.schedulers.faults.fault_model import FaultModel, fit_fault_model
from presage.schedulers.policies.fifo import Fifo
from tests.pipelines.public_files import real
from tests.schedulers.clusters import cluster, job, simulated


def real_trace():
    path = real("faults") / "fault_trace.json.gz"
    return path, parse_fault_trace(gzip.decompress(path.read_bytes()).decode())


def days_down(outages):
    return sum(one.until_s - one.from_s for one in outages) / DAY_S


# Outages ------------------------------------------------------------------------------------

TIMES = st.integers(0, 30).map(float)


@given(st.lists(st.builds(lambda n, a, b: Outage(n, min(a, b), max(a, b)),
                          st.integers(0, 2), TIMES, TIMES)))  # fmt: skip
def test_merged_outages_are_disjoint_cover_the_same_time_and_equal_the_faults(outages):
    found = merge_outages(outages)

    for a, b in pairwise(found):
        assert a.node < b.node or a.until_s < b.from_s
    for at_s in np.arange(0, 30, 0.5):
        for node in range(3):
            assert any(o.node == node and o.from_s <= at_s <= o.until_s for o in outages) == any(
                o.node == node and o.from_s <= at_s <= o.until_s for o in found
            )
    faults = outages_to_faults(outages)
    assert sorted(faults_to_outages(faults)) == found
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)


def test_a_fault_needs_a_finite_time():
    for at_s in (-1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="must be a finite number >= 0"):
            Fault(at_s, 0, repaired=False)


# The published trace ------------------------------------------------------------------------


def test_the_published_trace_has_the_counts_of_its_readme():
    _, trace = real_trace()

    assert (trace.nodes, trace.days, trace.faults) == (400, 349, 584)
    assert (trace.unended, trace.unstarted) == (0, 0)
    # Two faults began while their node was down.
    assert len(trace.outages) == 582
    assert len({one.node for one in trace.outages}) == 231
    assert days_down(trace.outages) == pytest.approx(3231.3222)


def test_a_cluster_of_equal_size_has_all_outages_and_a_smaller_one_a_subset():
    path, trace = real_trace()
    same = faults_to_outages(read_faults(path, cluster(*[8] * NODES), seed=1))
    some = faults_to_outages(read_faults(path, cluster(*[8] * 64), seed=1))
    other = faults_to_outages(read_faults(path, cluster(*[8] * 64), seed=2))

    def times(outages):
        return sorted((one.from_s, one.until_s) for one in outages)

    assert times(same) == times(trace.outages)
    assert set(times(some)) < set(times(same))
    assert times(some) != times(other)
    assert some == faults_to_outages(read_faults(path, cluster(*[8] * 64), seed=1))


def test_a_larger_cluster_repeats_every_traced_node_at_other_times():
    path, trace = real_trace()
    found = faults_to_outages(read_faults(path, cluster(*[8] * (2 * NODES)), seed=0))
    first = [one for one in found if one.node < NODES]
    again = [one for one in found if one.node >= NODES]

    assert days_down(again) == pytest.approx(days_down(first)) == pytest.approx(3231.3222)
    assert max(one.until_s for one in again) <= trace.days * DAY_S
    assert not {one.from_s for one in first} & {one.from_s for one in again if one.from_s}


def test_a_slice_begins_with_the_nodes_that_are_down_on_its_first_day():
    path, _ = real_trace()
    whole = faults_to_outages(read_faults(path, cluster(*[8] * NODES), seed=3))
    cut = read_faults(path, cluster(*[8] * NODES), seed=3, from_day=200.0)
    start_s = 200 * DAY_S
    down = {one.node for one in whole if one.from_s < start_s <= one.until_s}

    assert down
    assert {one.node for one in cut if one.at_s == 0} == down
    assert days_down(faults_to_outages(cut)) == pytest.approx(
        sum(max(0.0, one.until_s - max(one.from_s, start_s)) for one in whole) / DAY_S
    )
    with pytest.raises(TableError, match="has no day 350; name one from 0 to 349"):
        read_faults(path, cluster(8), seed=0, from_day=350)


def event(node, day, kind, why="x"):
    return {"node_id": node, "event_time": day, "event_type": f"fault_{kind}", "fault_type": why}


def test_overlapping_faults_and_faults_without_end_or_start():
    trace = parse_fault_trace(
        json.dumps(
            [
                event("a", 1.0, "start"), event("a", 2.0, "start", "y"), event("a", 3.0, "end"),
                event("a", 4.0, "end", "y"), event("b", 5.0, "end"), event("b", 6.0, "start"),
                event("a", 7.5, "end", "z"), event("c", 7.5, "end"), event("c", 7.5, "start"),
            ]
        )
    )  # fmt: skip

    assert trace.outages == (
        Outage(0, 1 * DAY_S, 4 * DAY_S),
        Outage(1, 6 * DAY_S, 8 * DAY_S),
        Outage(2, 7.5 * DAY_S, 7.5 * DAY_S),
    )
    assert (trace.faults, trace.unended, trace.unstarted) == (4, 1, 2)


def test_the_trace_of_another_cluster_declares_its_nodes():
    events = [event("a", 1.0, "start"), event("a", 2.0, "end")]
    trace = parse_fault_trace(json.dumps({"nodes": 3, "events": events}))

    assert (trace.nodes, trace.days) == (3, 2)
    assert parse_fault_trace(json.dumps(events)).nodes == NODES
    found = trace.map_to(3, seed=0)
    assert [(one.from_s, one.until_s) for one in found] == [(DAY_S, 2 * DAY_S)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"events": []}', "nodes=None, must be an integer >= 1"),
        ('{"nodes": 0, "events": []}', "nodes=0, must be an integer >= 1"),
        ('{"nodes": true, "events": []}', "nodes=True, must be"),
        ('{"nodes": 2, "events": []}', "is not a list of fault events"),
        (
            json.dumps({"nodes": 1, "events": [event(n, 1.0, "start") for n in "ab"]}),
            "has faults of 2 nodes, and declares nodes=1",
        ),
        ("[1, ", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "is not a list of fault events"),
        ("[]", "is not a list of fault events"),
        ("[1]", "event 0 has no text node_id"),
        (json.dumps([event("a", 1, "end"), event("a", 1, "stop")]), "event 1: .*'fault_stop'"),
        (json.dumps([event("a", -1, "start")]), "event 0: event_time=-1, must be"),
        (json.dumps([event("a", math.nan, "start")]), "event_time=nan"),
        (json.dumps([event("a", "1", "start")]), "event_time='1'"),
        (json.dumps([event("a", 10**400, "start")]), "must be days, from 0 to 36,525"),
        (json.dumps([event("a", 1, "start") | {"event_type": []}]), "event_type=.., must be"),
        ("at_s,node\n1,n0\n", "no column 'event'; a fault file is CSV"),
        ("", "no column 'at_s'"),
        ("at_s,node,event\n-1,n0,fail\n", "line 2: at_s='-1', must be a number >= 0"),
        ("at_s,node,event\n1,node0,fail\n", "line 2: node node0 is not known; known are n0, n1"),
        (
            "at_s,node,event\n1,n0,failed\n",
            "line 2: event failed is not known; did you mean 'fail'",
        ),
        ("at_s,node,event\n1,n0\n", "line 2: event None is not known"),
        ("at_s,node,event\n1,n0,repair\n", "line 2: n0 is repaired and is not down"),
        ("at_s,node,event\n5,n0,fail\n3,n0,fail\n", "line 2: n0 fails and is already down"),
    ],
)
def test_invalid_faults_are_reported_in_one_line_with_their_place(tmp_path, text, words):
    path = tmp_path / "faults"
    path.write_text(text)
    with pytest.raises(TableError, match=words) as error:
        read_faults(path, cluster(1, 1), seed=0)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_csv_file_names_nodes_in_any_order_plain_or_gzipped(tmp_path):
    text = "event,at_s,node\nrepair,9000,n1\nfail,3600,n1\nfail,7200,n0\n"
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    found = [
        read_faults(tmp_path / name, cluster(1, 1), seed=0, from_day=1 / 24)
        for name in ("a.csv", "a.csv.gz")
    ]

    assert found[0] == found[1] == (Fault(0, 1, False), Fault(3600, 0, False), Fault(5400, 1, True))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(text.encode())[:20])
    with pytest.raises(TableError, match="is not text, gzipped or plain"):
        read_faults(tmp_path / "cut.gz", cluster(1), seed=0)
    with pytest.raises(TableError, match="No such file"):
        read_faults(tmp_path / "absent", cluster(1), seed=0)


# Distributions ------------------------------------------------------------------------------

MODELS = [
    FaultModel(30 * DAY_S, 3 * DAY_S),
    FaultModel(30 * DAY_S, 3 * DAY_S, shape=0.6, spread=1.0),
    FaultModel(10 * DAY_S, 5 * DAY_S, shape=3.0, spread=0.5),
]
SPAN_S = 350 * DAY_S


def parts_down(faults, nodes, from_s, until_s):
    """Return, for each node, the fraction of time that it is down."""
    down = np.zeros(nodes)
    for node, a, b, _ in faults_to_outages(faults):
        down[node] += max(0.0, min(b, until_s) - max(a, from_s))
    return down / (until_s - from_s)


@pytest.mark.parametrize("model", MODELS, ids=["exponential", "bursts", "wear"])
def test_nodes_are_down_for_mttr_over_mtbf_plus_mttr_from_the_first_day(model):
    nodes = 1000
    faults = model.draw(nodes, SPAN_S, seed=0)

    for from_s, until_s in ((0, SPAN_S), (0, 5 * DAY_S), (SPAN_S - 5 * DAY_S, SPAN_S)):
        part = parts_down(faults, nodes, from_s, until_s)
        error = part.std() / math.sqrt(nodes)
        assert abs(part.mean() - model.down) < 4 * error
    assert model.down == model.mttr_s / (model.mtbf_s + model.mttr_s)
    assert faults == model.draw(nodes, SPAN_S, seed=0)
    assert faults != model.draw(nodes, SPAN_S, seed=1)


@pytest.mark.parametrize("model", MODELS, ids=["exponential", "bursts", "wear"])
def test_a_fit_recovers_the_parameters_of_drawn_faults(model):
    found = fit_fault_model(model.draw(2000, SPAN_S, seed=5), 2000, SPAN_S)

    assert found.mtbf_s == pytest.approx(model.mtbf_s, rel=0.03)
    assert found.mttr_s == pytest.approx(model.mttr_s, rel=0.05)
    assert found.shape == pytest.approx(model.shape, rel=0.05)
    assert found.spread == pytest.approx(model.spread, abs=0.05)


def test_the_published_trace_is_fitted():
    _, trace = real_trace()
    found = fit_fault_model(outages_to_faults(trace.outages), trace.nodes, trace.days * DAY_S)

    assert found.mtbf_s / DAY_S == pytest.approx(234.3, abs=0.1)
    assert found.mttr_s / DAY_S == pytest.approx(5.552, abs=0.001)
    assert found.shape == 0.39
    assert found.spread == pytest.approx(1.888, abs=0.001)
    assert found.down == pytest.approx(3231.3222 / (trace.nodes * trace.days))


def test_invalid_distribution_parameters_are_reported_in_one_line():
    for values in ({"mtbf_s": 0}, {"mttr_s": math.inf}, {"shape": math.nan}, {"spread": -1}):
        with pytest.raises(ConfigError, match=f"{next(iter(values))}=.*must be a finite number"):
            FaultModel(**({"mtbf_s": 1.0, "mttr_s": 1.0} | values))
    for faults in ((), (Fault(1, 0, False), Fault(1, 0, True)), (Fault(1, 0, False),)):
        with pytest.raises(TableError, match="nothing to fit"):
            fit_fault_model(faults, 1, 10.0)


# In the simulator ---------------------------------------------------------------------------


def test_jobs_finish_under_real_faults_and_lose_work_since_their_checkpoints():
    path, _ = real_trace()
    hour_s = 3600.0
    saves = Checkpointing(interval_s=6 * hour_s, cost_s=120.0, restart_s=300.0)
    rng = np.random.default_rng(0)
    jobs = [
        job(
            f"j{i}", 6 * hour_s * i, gpus=int(rng.choice([1, 2, 4, 8, 16, 32])), checkpointing=saves
        )
        for i in range(300)
    ]
    ground_truth = {one.job_id: float(rng.lognormal(4.5, 1)) * hour_s for one in jobs}
    devices = cluster(*[8] * 32)
    faults = read_faults(path, devices, seed=0, from_day=120.0)
    done = simulated(devices, Fifo(), jobs, ground_truth, faults=faults)

    assert {one.job.job_id for one in done.results} == ground_truth.keys()
    assert all(one.phase is Phase.FINISHED for one in done.results)
    # From the log: the length of runs, and the work that was saved.
    began_s: dict[str, float] = {}
    held_s, saved_s, starts = (dict.fromkeys(ground_truth, 0.0) for _ in range(3))
    for at_s, what, name, _ in done.log.entries:
        if what == "start":
            began_s[name] = at_s
            starts[name] += 1
        elif what in {"lost", "finish"}:
            ran_s = at_s - began_s[name]
            work_s = max(0.0, ran_s - (saves.restart_s if saved_s[name] else 0.0))
            step_s = saves.interval_s + saves.cost_s
            held_s[name] += ran_s
            saved_s[name] += work_s // step_s * step_s if what == "lost" else work_s
    assert Counter(what for _, what, _, _ in done.log.entries)["lost"] == 9
    for one in done.results:
        name, gpus = one.job.job_id, one.job.gpus
        whole_s = ground_truth[name] * (1 + saves.cost_s / saves.interval_s)
        assert saved_s[name] == pytest.approx(whole_s)
        assert one.status.attained_s == pytest.approx(gpus * held_s[name])
        assert one.status.starts == starts[name]
