"""Ground truth from measured models: slowdowns, and forecasts of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.models.release.release import load_release
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.forecasters.forecast_table import Table
from presage.schedulers.forecasters.noisy import Noisy
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.forecasters.predicted import Predicted
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.simulator.ground_truth.measured_truth import (
    MeasuredTruth,
    divide_by_weight,
    weighted_slowdowns,
)
from presage.schedulers.simulator.ground_truth.measurements import Measurements
from presage.schedulers.simulator.ground_truth.model_measurements import (
    attach_models,
    multi_node_ratios,
    read_measurements,
    resolve_model_name,
)
from presage.schedulers.traces.trace import Trace
from presage.serving.client.client import PresageClient
from presage.serving.predictor.predictor import Predictor
from tests.schedulers.clusters import GIB, cluster, job, simulated
from tests.serving.support.processes import serving

ROOT = Path(__file__).parents[3]
RELEASE = ROOT / "data/pretrained/release"

SMALL = Measurements(
    features={},
    step_s={("a", "v100"): 0.1, ("b", "v100"): 0.2, ("c", "v100"): 0.4, ("a", "k80"): 0.3,
            ("b", "k80"): 0.4, ("c", "k80"): 0.4},
    busy={("a", "v100"): 0.5, ("b", "v100"): 0.7},
    memory_bytes={("a", "v100"): 6 * GIB, ("b", "v100"): 7 * GIB, ("c", "v100"): 4 * GIB},
    slowdowns={("v100", ("a", "b")): (1.2, 1.5), ("v100", ("a", "a")): (0.9, 1.3)},
    too_large=frozenset({("v100", ("b", "c"))}),
)  # fmt: skip


def of(model: str, job_id: str = "", **values):
    return job(job_id or model, model=model, **values)


def colocated(*models: str, kind: str = "v100", milli: int = 1000, shares: str = "none"):
    world = MeasuredTruth({}, SMALL, "v100", shares=shares)
    members = [(of(model, str(i)), milli) for i, model in enumerate(models)]
    return world.slowdowns(kind, members)


def test_a_pair_has_its_measured_slowdowns_in_either_order():
    assert colocated("a", "b") == [1.2, 1.5]
    assert colocated("b", "a") == [1.5, 1.2]
    assert colocated("a", "a") == [pytest.approx(1.1)] * 2  # alike, so equally slow
    assert colocated("a") == [1.0]


def test_an_unmeasured_pair_shares_time_if_it_needs_more_than_the_device():
    assert colocated("a", "c") == [1.5, 1.5]  # half of the device and, unmeasured, all of it
    assert colocated("a", "b", kind="k80") == [2.0, 2.0]
    assert colocated("b", "b") == [pytest.approx(1.4)] * 2


def test_the_effects_of_several_co_located_jobs_are_added():
    a, b, c = colocated("a", "b", "c")
    assert a == pytest.approx(1 + 0.2 + 0.5)
    assert b == pytest.approx(1 + 0.5 + 0.7)
    assert c == pytest.approx(1 + 0.5 + 0.7)


def test_a_hard_limit_slows_a_job_down():
    assert colocated("a", milli=250) == [1.0]
    assert colocated("a", milli=250, shares="caps") == [2.0]  # it needs half of the device
    assert colocated("a", milli=600, shares="caps") == [1.0]
    assert colocated("a", "b", milli=500, shares="caps") == [1.2, 1.5]  # neighbours slow it more


def test_run_times_on_another_kind_scale_with_the_step_time():
    world = MeasuredTruth({"j": 100.0}, SMALL, "v100")
    assert world.solo_s(of("a", "j"), "v100", 1) == 100.0
    assert world.solo_s(of("a", "j"), "k80", 1) == pytest.approx(300.0)
    assert world.solo_s(of("a", "j", gpus=4), "v100", 2) == 200.0


def test_jobs_fit_by_their_measured_peaks_except_measured_failures():
    world = MeasuredTruth({}, SMALL, "v100")
    assert world.fits("v100", 16 * GIB, [of("a"), of("b")])
    assert not world.fits("v100", 12 * GIB, [of("a"), of("b")])
    assert not world.fits("v100", 16 * GIB, [of("a"), of("c"), of("b")])
    assert world.fits("k80", 1, [of("a"), of("b")])  # not measured


def test_an_oracle_returns_the_truth_and_a_table_the_measurements():
    world, devices = MeasuredTruth({"a": 100.0}, SMALL, "v100"), cluster(1)
    one, other = of("a", iterations=50), of("b")

    assert Oracle(world, devices).predictions([(one, "v100")]) == [
        RuntimePrediction(100.0, 500, 6 * GIB)
    ]
    assert Oracle(world, devices).slowdowns([("v100", (other, of("c")))]) == [
        (float("inf"), float("inf"))
    ]
    assert Table(SMALL).predictions([(one, "v100"), (other, "v100"), (of("d"), "v100")]) == [
        RuntimePrediction(5.0, 500, 6 * GIB), RuntimePrediction(float("inf"), 700, 7 * GIB), None
    ]  # fmt: skip
    assert Table(SMALL).slowdowns([("v100", (other, one)), ("v100", (one, of("c")))]) == [
        [1.5, 1.2], None
    ]  # fmt: skip


@given(
    spread=st.floats(0, 2),
    bias=st.floats(0.1, 10),
    order=st.permutations([of("a", str(i), iterations=i + 1) for i in range(5)]),
)
def test_noise_does_not_depend_on_the_order_of_requests(spread, bias, order):
    requests = [(one, "v100") for one in order]
    once = Noisy(Table(SMALL), spread=spread, bias=bias, seed=3)
    first_predictions = dict(zip(order, once.predictions(requests), strict=True))

    for one in order:
        assert once.predictions([(one, "v100")]) == [first_predictions[one]]
    for one, prediction in first_predictions.items():
        first = first_predictions[order[0]]
        assert prediction and first
        assert prediction.memory_bytes == first.memory_bytes  # of one model
        if spread == 0:
            assert prediction.runtime_s == pytest.approx(0.1 * one.iterations * bias)


def test_noise_has_the_requested_bias_and_spread():
    import numpy as np

    noisy = Noisy(Table(SMALL), spread=0.5, bias=2.0, seed=1)
    jobs = [of("a", str(i), iterations=1000) for i in range(4000)]
    predictions = noisy.predictions([(one, "v100") for one in jobs])
    off = np.log([prediction.runtime_s / 100 for prediction in predictions if prediction])

    assert np.exp(off.mean()) == pytest.approx(2.0, rel=0.03)
    assert off.std() == pytest.approx(0.5, rel=0.03)
    assert Noisy(Table(SMALL), spread=0.5, seed=2).predictions([(jobs[0], "v100")]) != (
        Noisy(Table(SMALL), spread=0.5, seed=1).predictions([(jobs[0], "v100")])
    )


@pytest.fixture(scope="module")
def zoo() -> Measurements:
    """Return this project's measurements on two cores, in git."""
    return read_measurements(ROOT / "data/profiles/cpu-2-zoo")


def test_our_own_campaign_is_a_ground_truth(zoo):
    assert zoo.kinds() == ["cpu-2"]
    assert len(zoo.models_on("cpu-2")) == 166
    assert sorted({len(models) for _, models in zoo.slowdowns}) == [2, 3]
    assert len(zoo.slowdowns) == 64
    (place, slowdowns) = next(iter(zoo.slowdowns.items()))
    world = MeasuredTruth({}, zoo, "cpu-2")
    members = [(of(model, str(i)), 1000) for i, model in enumerate(place[1])]
    assert world.slowdowns("cpu-2", members) == [max(1.0, s) for s in slowdowns]


def test_a_service_predicts_the_same_as_a_release_in_this_process(zoo):
    models = zoo.models_on("cpu-2")[:12]
    jobs = [
        job(model, model=model, features=zoo.features[model], iterations=1000)
        for model in models
    ]  # fmt: skip
    requests = [(one, "cpu-2") for one in [*jobs, of("unknown")]] + [(jobs[0], "no such kind")]
    pairs = [("cpu-2", (one, jobs[0])) for one in jobs] + [("cpu-2", (jobs[0], of("unknown")))]

    here = Predicted(Predictor(load_release(RELEASE)))
    with serving("--release", RELEASE) as server, PresageClient(server.target) as client:
        there = Predicted(client)
        predictions, together = there.predictions(requests), there.slowdowns(pairs)

    mine = here.predictions(requests)
    assert predictions[-2:] == mine[-2:] == [None, None]  # no features; a kind without forecast
    for one, other in zip(predictions[:-2], mine[:-2], strict=True):
        assert one is not None
        assert other is not None
        assert one[:-1] == pytest.approx(other[:-1], rel=1e-4)
        assert one.release_id == other.release_id == server.release_id
    assert together[-1] is None
    for there_, here_ in zip(together[:-1], here.slowdowns(pairs)[:-1], strict=True):
        assert there_ == pytest.approx(here_, rel=1e-4)


def test_a_lower_risk_raises_only_the_memory_bound(zoo):
    model = zoo.models_on("cpu-2")[0]
    one = job("j", model=model, features=zoo.features[model], iterations=10)
    predictor = Predictor(load_release(RELEASE))
    half, tenth, twentieth = (
        Predicted(predictor, risk=risk).predictions([(one, "cpu-2")])[0]
        for risk in (0.5, 0.1, 0.05)
    )

    assert half and tenth and twentieth
    assert half[:2] == tenth[:2] == twentieth[:2]
    assert half.memory_bytes < tenth.memory_bytes < twentieth.memory_bytes
    with pytest.raises(ConfigError, match=r"risk=0\.6, must be above 0"):
        Predicted(predictor, risk=0.6)


def test_models_are_found_by_the_names_in_traces():
    measured = ["gavel/A3C/b1", "gavel/ResNet-18/b64", "gavel/ResNet-50/b64"]
    assert resolve_model_name("ResNet-18 (batch size 64)", measured) == "gavel/ResNet-18/b64"
    assert resolve_model_name("A3C", measured) == "gavel/A3C/b1"
    assert resolve_model_name("gavel/A3C/b1", measured) == "gavel/A3C/b1"
    with pytest.raises(
        ConfigError, match=r"'gavel/ResNet-18/b46' .* did you mean 'gavel/ResNet-18"
    ):
        resolve_model_name("gavel/ResNet-18/b46", measured)


def test_a_model_must_be_timed_only_on_the_kinds_that_its_job_may_use(zoo):
    timed = {("a", "v100"): 0.1, ("a", "k80"): 0.3, ("a", "p100"): 0.2, ("b", "k80"): 0.4,
             ("b", "p100"): 0.2}  # fmt: skip
    features = next(iter(zoo.features.values()))
    measured = Measurements(dict.fromkeys("ab", features), timed)
    three = ("v100", "k80", "p100")

    def models_of(*jobs, kinds=three):
        trace = Trace(tuple(jobs), {one.job_id: 100.0 for one in jobs})
        return attach_models(trace, measured, kinds, seed=0).jobs

    choosy = of("b", "choosy", kinds=("k80", "p100"))
    known = models_of(of("a", "any"), choosy, job("drawn"))
    assert [(one.model, one.iterations) for one in known] == [("a", 1000), ("b", 250), ("a", 1000)]
    world = MeasuredTruth({"choosy": 100.0}, measured, "v100")
    assert world.solo_s(known[1], "k80", 1) == 100.0  # the first of its own kinds
    assert world.solo_s(known[1], "p100", 1) == pytest.approx(50.0)
    with pytest.raises(ConfigError, match="model 'b' of the trace was not measured"):
        models_of(of("b", "any"))

    other = ("v100", "none")
    assert models_of(of("a", "one", kinds=("v100",)), kinds=other)[0].model == "a"
    with pytest.raises(
        ConfigError, match="no model was timed on v100 and none; measured kinds are k80"
    ):
        models_of(job("drawn"), kinds=other)


def test_out_of_domain_jobs_of_a_release_are_counted(zoo):
    from dataclasses import replace

    from presage.schedulers.core.forecasts import Forecasts

    features = zoo.features[zoo.models_on("cpu-2")[0]]
    huge = replace(features, job=replace(features.job, job_id="huge", batch_size=10_000_000))
    devices = cluster(1, kind="cpu-2")
    predictions = Forecasts(Predicted(Predictor(load_release(RELEASE))), devices)
    jobs = [job(one.job.job_id, features=one, iterations=5) for one in (features, huge)]
    predictions.expect(jobs)
    for one in jobs:
        predictions.prediction(one, "cpu-2")
        predictions.forget(one)
        predictions.prediction(one, "cpu-2")
    assert predictions.out_of_domain == {"cpu-2": 1}


def test_a_gang_on_several_nodes_has_the_measured_ratio():
    measured = replace(SMALL, spread={("a", "v100", 2): 1.5, ("a", "v100", 4): 2.0,
                                      ("b", "v100", 2): 0.9})  # fmt: skip
    world = MeasuredTruth({"x": 10.0, "y": 10.0}, measured, "v100")
    assert [world.spread(of("a"), "v100", gpus, 2) for gpus in (2, 3, 4, 8)] == [1.5, 1.5, 2.0, 2.0]
    assert world.spread(of("b"), "v100", 2, 2) == 1.0  # faster apart is noise
    assert world.spread(of("c"), "v100", 2, 2) == world.spread(of("a"), "k80", 2, 2) == 1.0

    jobs = [of("a", "x", gpus=4), of("a", "y", submit_s=100.0, gpus=2)]
    done = simulated(cluster(2, 2), Fifo(), jobs, world)
    assert [one.end_s for one in done.results] == [20.0, 110.0]


def test_multi_node_ratios_need_both_measurements():
    rows = [
        ("a", 2, 0, "consolidated", 0.2), ("a", 2, 0, "unconsolidated", 0.3),
        ("a", 4, 1, "4", 0.4), ("a", 4, 2, "2 2", 1.0), ("a", 4, 4, "1 1 1 1", 1.2),
        ("b", 2, 0, "unconsolidated", 0.3),
    ]  # fmt: skip
    columns = ["job_id", "devices", "nodes", "placement", "step_time_s"]
    table = pd.DataFrame(rows, columns=columns).assign(device_kind="v100")
    assert multi_node_ratios(table) == {
        ("a", "v100", 2): pytest.approx(1.5), ("a", "v100", 4): pytest.approx(1.1 / 0.4),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("needed", "weights", "allocated"),
    [
        ((0.3, 0.4), (300, 400), (0.3, 0.4)),
        ((1.0, 1.0), (750, 250), (0.75, 0.25)),
        ((0.2, 1.0), (500, 500), (0.2, 0.8)),
        ((0.1, 0.9, 0.9), (100, 600, 300), (0.1, 0.6, 0.3)),
        ((0.9,), (100,), (0.9,)),
    ],
)
def test_a_device_is_divided_by_weights_and_unused_shares_are_redistributed(
    needed, weights, allocated
):
    assert divide_by_weight(needed, weights) == pytest.approx(allocated)


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(1, 1000)), min_size=1, max_size=6))
def test_a_device_is_fully_used_while_a_job_needs_more(members):
    needed, weights = zip(*members, strict=True)
    allocations = divide_by_weight(needed, weights)
    assert all(got <= want + 1e-9 for got, want in zip(allocations, needed, strict=True))
    assert sum(allocations) == pytest.approx(min(1.0, sum(needed)))


def test_unequal_weights_shift_the_mutual_slowdown_to_the_smaller_weight():
    effects = [[9.0, 0.2], [0.4, 9.0]]  # what a job does to itself is not asked
    assert weighted_slowdowns(effects, [500, 500]) == pytest.approx([1.2, 1.4])
    assert weighted_slowdowns(effects, [900, 100]) == pytest.approx([1.04, 1.72])
    assert weighted_slowdowns([[9.0]], [700]) == [1.0]
    assert weighted_slowdowns(effects, [900, 100], 1.0) == pytest.approx(
        [1.2, 1.4]
    )  # no weight changes it
    assert weighted_slowdowns(effects, [900, 100], 0.5) == pytest.approx([1.12, 1.56])


def test_with_weights_a_pair_has_its_measured_slowdown_or_that_of_chance_overlap():
    assert colocated("a", "b", milli=500, shares="weights") == pytest.approx([1.2, 1.5])
    assert colocated("b", "b", milli=500, shares="weights") == pytest.approx([1.49, 1.49])
    assert colocated("c", "c", milli=500, shares="weights") == [
        2.0,
        2.0,
    ]  # all of it, for all we know


def test_a_latency_sensitive_jobs_weight_counts_tenfold():
    world = MeasuredTruth({}, SMALL, "v100", shares="weights")
    members = [(of("a", "urgent", latency_sensitive=True), 500), (of("b", "other"), 500)]
    assert world.slowdowns("v100", members) == pytest.approx([1 + 0.4 / 11, 1 + 0.5 * 20 / 11])


def test_with_weights_a_job_may_use_what_co_located_jobs_leave():
    assert colocated("a", milli=250, shares="weights") == [1.0]
    with pytest.raises(ValueError, match="none, caps, weights"):
        colocated("a", shares="weight")
