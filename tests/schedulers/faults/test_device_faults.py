"""Faults of single devices: files, the model of their rates, and the simulator (L13)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from presage.errors import ConfigError, TableError
from presage.features.hazard.outage import Outage
from presage.schedulers.core.job_status import Phase
from presage.schedulers.faults.device_fault_model import (
    DAY_S,
    DeviceFaultModel,
    parse_device_faults,
)
from presage.schedulers.faults.fault import Fault, faults_to_outages
from presage.schedulers.faults.fault_file import read_faults, read_outages
from presage.schedulers.faults.fault_history import make_history
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.simulator.results.timeline import make_timeline
from tests.schedulers.clusters import cluster, job, simulated

# Files --------------------------------------------------------------------------------------


def test_a_csv_file_names_devices_by_number_or_name_or_leaves_them_empty(tmp_path):
    path = tmp_path / "faults.csv"
    path.write_text(
        "at_s,node,device,event\n10,n1,2,fail\n20,n1,,fail\n30,n1,n1/2,repair\n40,n1,,repair\n"
    )
    assert read_faults(path, cluster(2, 4), seed=0) == (
        Fault(10, 1, False, 4), Fault(20, 1, False), Fault(30, 1, True, 4), Fault(40, 1, True),
    )  # fmt: skip


def test_outages_before_the_first_day_are_history(tmp_path):
    path = tmp_path / "faults.csv"
    path.write_text(
        "at_s,node,device,event\n"
        "0,n0,0,fail\n3600,n0,0,repair\n7200,n0,1,fail\n90000,n0,1,repair\n100000,n0,,fail\n"
    )
    earlier, later = read_outages(path, cluster(2), seed=0, from_day=1.0)

    assert earlier == [Outage(0, -DAY_S, 3600 - DAY_S, 0)]
    assert later == [Outage(0, 0.0, 3600.0, 1), Outage(0, 13600.0, math.inf)]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1,n0,2,fail", "line 2: device '2' is not on node n0; name one from 0 to 1"),
        ("1,n0,n1/0,fail", "device 'n1/0' is not on node n0"),
        ("1,n0,-1,fail", "device '-1' is not on node n0"),
        ("1,n0,x,fail", "device 'x' is not on node n0"),
        ("1,n0,9999999999999,fail", "is not on node n0"),
        ("1,n0,0,repair", "line 2: n0/0 is repaired and is not down"),
        ("nan,n0,0,fail", "at_s='nan', must be a number >= 0"),
        ("inf,n0,0,fail", "at_s='inf', must be a number >= 0"),
    ],
)
def test_unknown_devices_are_reported_in_one_line(tmp_path, row, words):
    path = tmp_path / "faults.csv"
    path.write_text(f"at_s,node,device,event\n{row}\n")
    with pytest.raises(TableError, match=words) as error:
        read_faults(path, cluster(2, 2), seed=0)
    assert "\n" not in str(error.value)


def test_faults_of_unknown_units_are_errors_of_the_simulation():
    for fault, words in (
        (Fault(1, 3, False), "a fault of node 3, and the cluster has 2 nodes"),
        (Fault(1, -1, False), "a fault of node -1"),
        (Fault(1, 0, False, 2), "a fault of device 2, which is not on node 'n0'"),
        (Fault(1, 0, False, -1), "a fault of device -1"),
    ):
        with pytest.raises(ConfigError, match=words):
            simulated(cluster(2, 2), Fifo(), [], {}, faults=(fault,))


# Distributions ------------------------------------------------------------------------------

SPAN_S = 400 * DAY_S


def failures(faults, devices):
    """Return the number of outages of each device by itself."""
    count = np.zeros(devices)
    for one in faults_to_outages(faults):
        if one.device is not None:
            count[one.device] += 1
    return count


def test_l13_devices_fail_by_themselves_at_the_given_mean_rate():
    model = DeviceFaultModel(20 * DAY_S, 1 * DAY_S, repair_spread=0.5)
    faults = model.draw(cluster(*[8] * 50), SPAN_S, seed=0)
    count = failures(faults, 400)

    assert all(fault.device is not None for fault in faults)
    assert count.mean() == pytest.approx(400 / 21, rel=0.03)
    assert count.var() == pytest.approx(count.mean(), rel=0.25)  # as if all were alike
    assert faults == model.draw(cluster(*[8] * 50), SPAN_S, seed=0)
    assert faults != model.draw(cluster(*[8] * 50), SPAN_S, seed=1)


def test_l13_rates_differ_by_device_and_stay_so():
    model = DeviceFaultModel(20 * DAY_S, 0.1 * DAY_S, rate_spread=1.0)
    devices = cluster(*[8] * 50)
    count = failures(model.draw(devices, SPAN_S, seed=3), 400)
    rates = model.device_rates(400, seed=3)

    assert rates.mean() == pytest.approx(1, abs=0.2)
    assert np.corrcoef(count, rates)[0, 1] > 0.9
    given = DeviceFaultModel(20 * DAY_S, DAY_S, rates=(1.0, 3.0)).device_rates(2, seed=0)
    assert given.tolist() == [0.5, 1.5]


def test_drawn_rates_drift():
    def halves(drift_s):
        model = DeviceFaultModel(5 * DAY_S, 0.1 * DAY_S, rate_spread=1.0, drift_s=drift_s)
        faults = model.draw(cluster(*[8] * 50), SPAN_S, seed=0)
        first = [one for one in faults if one.at_s < SPAN_S / 4]
        last = [one for one in faults if one.at_s > 3 * SPAN_S / 4]
        # A repair without its failure in this quarter is left out.
        return [
            np.bincount([f.device for f in part if not f.repaired and f.device is not None],
                        minlength=400)
            for part in (first, last)
        ]  # fmt: skip

    assert np.corrcoef(*halves(math.inf))[0, 1] > 0.8
    assert abs(np.corrcoef(*halves(20 * DAY_S))[0, 1]) < 0.2


def test_recency_a_repair_is_followed_by_more_failures_at_the_same_mean_rate():
    plain = DeviceFaultModel(50 * DAY_S, 0.1 * DAY_S)
    recent = DeviceFaultModel(50 * DAY_S, 0.1 * DAY_S, follow_ups=0.5, half_life_s=2 * DAY_S)
    soon = []
    for model in (plain, recent):
        outages = faults_to_outages(model.draw(cluster(*[8] * 100), SPAN_S, seed=0))
        starts: dict[int, list[float]] = {}
        for one in sorted(outages, key=lambda one: one.from_s):
            assert one.device is not None
            starts.setdefault(one.device, []).append(one.from_s)
        gaps = [b - a for found in starts.values() for a, b in pairwise(found)]
        soon.append(np.mean(np.array(gaps) < 5 * DAY_S))
        assert len(outages) == pytest.approx(800 * 400 / 50, rel=0.07)
    assert soon[0] == pytest.approx(0.1, abs=0.02)
    assert soon[1] > 0.4


def test_a_share_of_outages_takes_whole_nodes():
    model = DeviceFaultModel(20 * DAY_S, 1.0, node_share=0.25)
    outages = faults_to_outages(model.draw(cluster(*[8] * 50), SPAN_S, seed=0))
    of_nodes = [one for one in outages if one.device is None]

    # Every outage of a node is one of each of its eight devices.
    assert len(of_nodes) * 8 / (len(of_nodes) * 8 + len(outages) - len(of_nodes)) == pytest.approx(
        0.25, abs=0.03
    )
    whole = DeviceFaultModel(20 * DAY_S, 1.0, node_share=1.0)
    assert all(f.device is None for f in whole.draw(cluster(*[8] * 50), SPAN_S, seed=0))


def test_parameters_as_text():
    model = parse_device_faults("mtbf=30, mttr=0.5,rate_spread=1,drift=90,follow_ups=0.3")

    assert model == DeviceFaultModel(
        30 * DAY_S, 0.5 * DAY_S, rate_spread=1.0, drift_s=90 * DAY_S, follow_ups=0.3
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mtbf=0,mttr=1", "mtbf_s=0.0, must be a finite number > 0"),
        ("mtbf=nan,mttr=1", "mtbf_s=nan, must be"),
        ("mtbf=inf,mttr=1", "mtbf_s=inf, must be"),
        ("mtbf=1,mttr=1,rate_spread=nan", "rate_spread=nan, must be within 0 and 10"),
        ("mtbf=1,mttr=1,drift=0", "drift_s=0.0, must be a number > 0"),
        ("mtbf=1,mttr=1,follow_ups=1", "follow_ups=1.0, must be within 0 and 0.95"),
        ("mtbf=1,mttr=1,node_share=2", "node_share=2.0, must be within 0 and 1"),
        ("mtbf=x,mttr=1", "mtbf='x', must be a number"),
        ("mtbf=1", "mttr is missing"),
        ("mtfb=1,mttr=1", "'mtfb' is unknown; did you mean 'mtbf'"),
    ],
)
def test_invalid_parameters_are_reported_in_one_line(text, words):
    with pytest.raises(ConfigError, match=words) as error:
        parse_device_faults(text)
    assert "\n" not in str(error.value)


def test_invalid_rates_and_too_many_failures_are_reported_in_one_line():
    for rate in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"rate of device 1: .*, must be a finite number > 0"):
            DeviceFaultModel(1.0, 1.0, rates=(1.0, rate))
    with pytest.raises(ConfigError, match="2 rates for 3 devices"):
        DeviceFaultModel(1.0, 1.0, rates=(1.0, 1.0)).draw(cluster(3), 1.0, seed=0)
    with pytest.raises(ConfigError, match="do not drift"):
        DeviceFaultModel(1.0, 1.0, rates=(1.0,), drift_s=5.0)
    with pytest.raises(ConfigError, match="at most 1,000,000 are drawn"):
        DeviceFaultModel(1.0, 1.0).draw(cluster(8), 1e9, seed=0)


# In the simulator ---------------------------------------------------------------------------


def test_l13_a_node_with_a_failed_device_keeps_its_other_devices():
    jobs = [job("a", gpus=1), job("b", gpus=1), job("c", 2.0, gpus=2)]
    faults = (Fault(1, 0, False, 0), Fault(50, 0, True, 0))
    done = simulated(cluster(2), Fifo(), jobs, {"a": 10.0, "b": 20.0, "c": 5.0}, faults=faults)
    ends = {one.job.job_id: one.end_s for one in done.results}

    assert all(one.phase is Phase.FINISHED for one in done.results)
    # Job a is lost at 1 s, waits for device 1, which b keeps, and starts over at 20 s.
    assert ends == {"b": 20.0, "a": 30.0, "c": 55.0}
    failed = [
        (at_s, what, of) for at_s, what, _, of in done.log.entries if what in {"fail", "repair"}
    ]
    assert failed == [
        (1, "fail", {"node": "n0", "device": "n0/0"}),
        (50, "repair", {"node": "n0", "device": "n0/0"}),
    ]
    assert done.busy_s == 1 + 20 + 10 + 2 * 5


def test_outages_of_a_node_and_of_its_device_overlap():
    faults = (
        Fault(1, 0, False, 0), Fault(2, 0, False), Fault(3, 0, True, 0), Fault(6, 0, True),
        Fault(7, 0, False), Fault(8, 0, False, 1), Fault(9, 0, True), Fault(12, 0, True, 1),
    )  # fmt: skip
    done = simulated(cluster(2, 1), Fifo(), [job("last", 20.0)], {"last": 1.0}, faults=faults)
    history = {name: list(found) for name, found in done.ledger.outages.outages.items()}

    assert history == {"n0/0": [(1, 6), (7, 9)], "n0/1": [(2, 6), (7, 12)]}
    line = make_timeline(done.log.entries, cluster(2, 1), ended=("last",))
    assert list(zip(line.devices_up().at_s, line.devices_up().value, strict=True)) == [
        (0, 3), (1, 2), (2, 1), (6, 3), (7, 1), (9, 2), (12, 3),
    ]  # fmt: skip


def test_the_history_of_the_cluster_before_the_start():
    outages = [
        Outage(0, -50.0, -40.0), Outage(0, -45.0, -30.0, 1), Outage(1, -9.0, -8.0, 2),
    ]  # fmt: skip
    history = make_history(outages, cluster(2, 1))

    assert history.observed_from_s == -50.0
    assert {name: list(found) for name, found in history.outages.items()} == {
        "n0/0": [(-50, -40)], "n0/1": [(-50, -30)], "n1/0": [(-9, -8)],
    }  # fmt: skip
    assert [one.at_s for one in history.events if one.is_repair] == [-40, -30, -8]
    assert history.down_s(0.0) == 10 + 20 + 1
    with pytest.raises(ConfigError, match="must be over at 0 s"):
        make_history([Outage(0, -1.0, 1.0)], cluster(1))
    with pytest.raises(ConfigError, match="a fault of node 5"):
        make_history([Outage(5, -2.0, -1.0)], cluster(1))


def test_a_clock_that_steps_back_leaves_outages_in_order():
    history = make_history([], cluster(1))
    for name, at_s in (("fail", 10.0), ("repair", 4.0), ("fail", 2.0), ("repair", 20.0)):
        record = history.record_failure if name == "fail" else history.record_repair
        record("n0/0", at_s)

    assert list(history.outages["n0/0"]) == [(10, 10), (10, 20)]
