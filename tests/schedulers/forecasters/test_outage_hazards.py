"""Hazards that policies read: a fitted model on the history of outages, and the contract."""

from __future__ import annotations

import gzip
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from presage.errors import ConfigError, PresageError
from presage.features.hazard.fault_trace import parse_fault_trace
from presage.features.hazard.hazard_file import pretrained_hazard_file, read_hazard_model
from presage.features.hazard.hazard_model import DAY_S, HazardModel, Hazards
from presage.features.hazard.outage import Outage
from presage.models.hazard.hazard_score import log_losses, share_in_top
from presage.schedulers.core.backend import make_ledger
from presage.schedulers.core.failures.outage_history import OutageHistory
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.policy import PolicyNeeds
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.faults.device_fault_model import DeviceFaultModel
from presage.schedulers.faults.fault import Fault
from presage.schedulers.faults.fault_history import make_history
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.forecasters.outage_hazards import OutageHazards, read_outage_hazards
from presage.schedulers.policies.fifo import Fifo
from tests.pipelines.public_files import real
from tests.schedulers.clusters import cluster, job, simulated

MODEL = HazardModel(0.01, 0.3, (1.0, 7.0), ((0.008, 0.2), (0.012, 0.4)), level_failures=10.0)


def state_of(devices, now_s, *, outages=None, ids=None):
    forecasts = Forecasts(NoForecasts(), devices)
    ledger = make_ledger(devices, Fifo(), forecasts, outages=outages, device_ids=ids)
    return State(ledger, now_s, Progress())


def history(*events):
    found = OutageHistory()
    for device_id, from_s, until_s in events:
        found.record_failure(device_id, from_s)
        found.record_repair(device_id, until_s)
    return found


def chance(state, within_s=DAY_S, model=MODEL):
    return OutageHazards(model).hazards(state, within_s, interval=False).probability


def test_without_history_all_devices_have_the_base_rate():
    assert chance(state_of(cluster(2, 2), 0.0)) == pytest.approx(-math.expm1(-0.01))


def test_a_device_is_less_reliable_after_a_repair_and_recovers():
    def at(days):
        past = history(("n0/1", 0.0, DAY_S))
        return chance(state_of(cluster(2, 2), DAY_S * (1 + days), outages=past))

    soon, later, late = at(0), at(5), at(200)
    assert soon[1] > later[1] > later[0]
    assert late[1] == pytest.approx(late[0], rel=1e-3)
    assert soon[0] == soon[2] == soon[3]


def test_the_history_follows_a_device_to_another_number_and_a_new_device_has_none():
    past = history(("GPU-a", 0.0, DAY_S), ("GPU-b", 0.0, 2.0))
    before = chance(state_of(cluster(2), 2 * DAY_S, outages=past, ids=("GPU-a", "GPU-b")))
    moved = chance(state_of(cluster(2), 2 * DAY_S, outages=past, ids=("GPU-c", "GPU-a")))

    assert before[0] > before[1]
    assert moved[1] > moved[0]
    new = chance(state_of(cluster(2), 2 * DAY_S, outages=past, ids=("GPU-c", "GPU-d")))
    assert new[0] == new[1]


def test_one_forecaster_follows_a_ledger_that_is_rebuilt():
    forecaster, past = OutageHazards(MODEL), history(("GPU-a", 0.0, DAY_S))
    first = state_of(cluster(2), 2 * DAY_S, outages=past, ids=("GPU-a", "GPU-b"))
    second = state_of(cluster(2), 2 * DAY_S, outages=past, ids=("GPU-b", "GPU-a"))
    one = forecaster.hazards(first, DAY_S, interval=False).probability
    two = forecaster.hazards(second, DAY_S, interval=False).probability

    assert one.tolist() == two[::-1].tolist()


def test_the_base_rate_moves_to_that_of_the_cluster():
    devices = cluster(*[8] * 8)
    rare = chance(state_of(devices, 1000 * DAY_S))
    faults = DeviceFaultModel(2 * DAY_S, 0.01 * DAY_S).draw(devices, 60 * DAY_S, seed=0)
    often = simulated(devices, Fifo(), [job("last", 60 * DAY_S)], {"last": 1.0}, faults=faults)
    state = State(often.ledger, 60 * DAY_S, Progress())

    assert rare.max() < 0.001
    # Devices that fail every second day, without memory.
    assert chance(state).mean() == pytest.approx(-math.expm1(-0.5), abs=0.12)


def test_l13_devices_that_fail_often_are_found_where_rates_differ():
    devices = cluster(*[8] * 8)
    model = DeviceFaultModel(100 * 3600.0, 3600.0, rate_spread=1.0)
    faults = model.draw(devices, 60 * DAY_S, seed=0)
    done = simulated(devices, Fifo(), [job("last", 60 * DAY_S)], {"last": 1.0}, faults=faults)
    found = chance(State(done.ledger, 60 * DAY_S, Progress()), 3600.0)

    true = model.device_rates(64, seed=0) / 100
    assert np.corrcoef(found, true)[0, 1] > 0.8
    assert found.mean() == pytest.approx(true.mean(), rel=0.25)


def test_hazards_of_the_published_trace_are_as_accurate_online_as_in_the_pipeline():
    text = gzip.decompress((real("faults") / "fault_trace.json.gz").read_bytes()).decode()
    trace, devices = parse_fault_trace(text), cluster(*[1] * 400)
    start_s = trace.days * DAY_S
    past = [one._replace(from_s=one.from_s - start_s, until_s=one.until_s - start_s)
            for one in trace.outages]  # fmt: skip
    events = make_history(past, devices).events
    seen, forecaster = (
        OutageHistory(-start_s),
        OutageHazards(read_hazard_model(pretrained_hazard_file())),
    )
    state, fails, found = state_of(devices, -start_s, outages=seen), [], []
    starts: dict[str, list[float]] = {}
    for event in events:
        if not event.is_repair:
            starts.setdefault(event.device_id, []).append(event.at_s)
    position = 0
    for day in range(200, trace.days):
        state.now_s = day * DAY_S - start_s
        while position < len(events) and events[position].at_s <= state.now_s:
            device_id, at_s, is_repair = events[position]
            (seen.record_repair if is_repair else seen.record_failure)(device_id, at_s)
            position += 1
        hazards = forecaster.hazards(state, DAY_S, interval=False).probability
        for device, device_id in enumerate(state.device_ids):
            if not seen.is_down(device_id):
                coming = starts.get(device_id, ())
                fails.append(any(state.now_s < at_s <= state.now_s + DAY_S for at_s in coming))
                found.append(hazards[device])
    fails_there, chances = np.array(fails), np.array(found)

    assert fails_there.sum() == 211
    assert log_losses(fails_there, chances).mean() <= 0.0229
    assert share_in_top(fails_there, chances, 0.05) >= 0.24
    assert chances.mean() == pytest.approx(fails_there.mean(), rel=0.05)


def test_a_decision_for_512_devices_reads_hazards_within_a_millisecond():
    devices = cluster(*[8] * 64)
    faults = DeviceFaultModel(DAY_S, 3600.0).draw(devices, 20 * DAY_S, seed=0)
    done = simulated(devices, Fifo(), [job("last", 20 * DAY_S)], {"last": 1.0}, faults=faults)
    forecaster, state = OutageHazards(MODEL), State(done.ledger, 20 * DAY_S, Progress())
    forecaster.hazards(state, 1.0, interval=False)
    took_s = []
    for step in range(50):
        state.now_s += 1.0
        began_s = time.perf_counter()
        forecaster.hazards(state, 3600.0 * step, interval=False)
        took_s.append(time.perf_counter() - began_s)

    assert min(took_s) < 1e-3


# Contract -----------------------------------------------------------------------------------


class Reader(Fifo):
    """Policy that notes the hazards at each decision."""

    def __init__(self, *, declares=True):
        self.needs = PolicyNeeds(hazards=declares)
        self.noted: list[tuple[float, list[float]]] = []

    def decide(self, state, forecasts, rng):
        chances = forecasts.hazards(state, DAY_S).probability
        self.noted.append((state.now_s, chances.tolist()))
        return super().decide(state, forecasts, rng)


def test_policies_that_declare_hazards_read_them_in_a_simulation_and_others_get_zeros():
    faults = (Fault(10, 0, False, 0), Fault(20, 0, True, 0))
    jobs = [job("a", 0.0), job("b", 30.0)]
    for declares in (True, False):
        policy = Reader(declares=declares)
        simulated(cluster(2), policy, jobs, {"a": 1.0, "b": 1.0}, faults=faults,
                  hazards=OutageHazards(MODEL))  # fmt: skip
        last_s, (first, second) = policy.noted[-1]
        assert last_s == 31.0
        assert (first > second > 0) if declares else (first == second == 0)


def test_the_outages_before_the_start_are_known():
    policy = Reader()
    simulated(cluster(1, 1), policy, [job("a")], {"a": 1.0}, hazards=OutageHazards(MODEL),
              earlier_outages=[Outage(1, -100.0, -50.0)])  # fmt: skip
    _, (first, second) = policy.noted[0]

    assert second > first


class Broken:
    """Hazard forecaster that returns or raises anything."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def hazards(self, state, within_s, *, interval):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_missing_or_invalid_hazards_are_never_exceptions():
    def found(result):
        forecasts = Forecasts(NoForecasts(), cluster(2), hazards=Broken(result))
        return forecasts, forecasts.hazards(state_of(cluster(2), 0.0), 1.0)

    for error in (PresageError("no model"), ValueError("no model"), ZeroDivisionError("no model")):
        forecasts, hazards = found(error)
        assert hazards.probability.tolist() == [0, 0]
        assert forecasts.failures == {"no model": 1}
    odd = Hazards(np.array([np.nan, 0.5]), np.array([0.2, 0.7]), np.array([np.inf, 0.1]))
    _, hazards = found(odd)
    assert [one.tolist() for one in hazards] == [[1, 0.5], [0.2, 0.5], [1, 0.5]]
    assert found(Hazards(*[np.zeros(3)] * 3))[1].probability.tolist() == [0, 0]
    none = Forecasts(NoForecasts(), cluster(2))
    assert not none.has_hazards
    assert none.hazard(state_of(cluster(2), 0.0), 1, 5.0) == (0, 0, 0)


def test_the_hazard_of_one_device_has_an_interval():
    forecasts = Forecasts(NoForecasts(), cluster(2), hazards=OutageHazards(MODEL))
    found = forecasts.hazard(state_of(cluster(2), 0.0), 1, DAY_S)

    assert 0 < found.low < found.probability < found.high < 1


def test_a_missing_hazard_file_is_one_line():
    assert isinstance(read_outage_hazards(), OutageHazards)
    with pytest.raises(ConfigError, match=r"absent\.json: cannot be read as a hazard model"):
        read_outage_hazards(Path("absent.json"))
