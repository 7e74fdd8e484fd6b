"""In-process predictor: its domain, and results that it rejects."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from presage.errors import ReleaseError
from presage.features.colocation import Colocation
from presage.features.columns.schema import columns
from presage.features.device.device import Share
from presage.features.placement import Placement
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.serving.predictor.predictor import Predictor


def predict_one(predictor, features, cpu, share=1.0):
    return predictor.predict([Placement(features, cpu, Share(share))])[0].step_time_s


@pytest.mark.parametrize(
    ("batch_size", "inside"), [(1, True), (16, True), (256, True), (260, True), (600, False)]
)
def test_the_domain_is_the_training_range_with_a_margin(release, job, cpu, batch_size, inside):
    forecast = predict_one(Predictor(release), job(batch_size=batch_size), cpu)

    assert forecast.in_domain is inside  # trained on batches of 1 to 256


def test_a_smaller_share_than_any_trained_one_is_out_of_domain(release, job, cpu):
    predictor = Predictor(release)

    assert predict_one(predictor, job(), cpu, share=0.25).in_domain
    assert not predict_one(predictor, job(), cpu, share=0.1).in_domain


def test_an_unknown_operator_puts_a_job_out_of_domain(release, job, cpu):
    known = job()
    unknown = replace(known, op_stats=(*known.op_stats, replace(known.op_stats[0], kind="Other")))

    assert not predict_one(Predictor(release), unknown, cpu).in_domain


def test_a_device_of_an_untrained_kind_is_out_of_domain_with_any_numbers(release, job, cpu):
    assert not predict_one(Predictor(release), job(), replace(cpu, kind="cpu-2b")).in_domain


def test_a_precision_that_was_not_trained_on_is_out_of_domain(release_with, job, cpu):
    rate = cpu.peak_flops_per_s["fp32"]
    alike = replace(cpu, peak_flops_per_s={"fp32": rate, "bf16": rate})  # so are the features

    for trained, inside in ((["fp32"], [True, False]), (["bf16", "fp32"], [True, True])):
        predictor = Predictor(release_with(precisions=trained))
        asked = [predict_one(predictor, job(precision=p), alike) for p in ("fp32", "bf16")]
        assert [forecast.in_domain for forecast in asked] == inside


def with_version(features, version):
    """Return the job with another framework version."""
    return replace(features, job=replace(features.job, framework_version=version))


def test_a_new_framework_release_widens_the_interval_in_domain(release_with, job, cpu):
    margins = {name: {"release": {"processor": {0.05: 2.0, 0.1: 1.0}}} for name in QUANTITIES}
    predictor = Predictor(
        release_with(trained_releases={"processor": [26.0, 27.0]}, novelty_margins=margins)
    )
    known, new = (
        predict_one(predictor, with_version(job(), version), cpu) for version in ("2.13", "1.10")
    )

    assert known.in_domain
    assert new.in_domain
    assert (new.median, new.low, new.high) == pytest.approx(
        (known.median, known.low / np.e, known.high * np.e), rel=1e-4
    )


def test_a_new_job_and_a_new_device_have_margins_of_their_own(release_with, job, cpu):
    margins = {
        name: {
            "job": {"processor": {0.05: 0.3, 0.1: 0.2}},
            "device": {"processor": {0.05: 0.6, 0.1: 0.5}},
        }
        for name in QUANTITIES
    }
    predictor = Predictor(release_with(novelty_margins=margins))
    plain = Predictor(release_with(novelty_margins={name: {} for name in QUANTITIES}))
    elsewhere = replace(cpu, kind="cpu-2b")

    def widening(features, device):
        wide, narrow = (predict_one(one, features, device) for one in (predictor, plain))
        return wide.high / narrow.high

    large = job(batch_size=600)  # trained on batches of 1 to 256
    found = [widening(*asked) for asked in ((large, cpu), (job(), elsewhere), (large, elsewhere))]
    assert found == pytest.approx(np.exp([0.2, 0.5, 0.5]), rel=1e-4)


def test_a_job_between_the_radii_is_in_domain_and_has_a_wider_interval(release_with, job, cpu):
    trained = release_with().domains["processor"]

    def forecast(near_radius):
        domain = replace(trained, radius=1.0, near_radius=near_radius)
        return predict_one(Predictor(release_with(domains={"processor": domain})), job(), cpu)

    near, far = forecast(1.0), forecast(0.0)
    assert near.in_domain
    assert far.in_domain
    assert far.median == near.median
    assert far.high > near.high


def test_a_domain_check_that_says_little_of_the_error_is_unknown(release_with, job, cpu):
    ratios = {"step_time": 1.2, "memory": 1.6}
    guarantees = {
        name: {"class processor": {"domain_error_ratio": ratio}} for name, ratio in ratios.items()
    }
    predictor = Predictor(release_with(guarantees=guarantees))
    large, elsewhere = job(batch_size=600), replace(cpu, kind="cpu-2b")
    known, out, new = predictor.predict(
        [Placement(job(), cpu), Placement(large, cpu), Placement(job(), elsewhere)]
    )

    assert [one.step_time_s.domain_check for one in (known, out, new)] == ["unknown"] * 2 + ["no"]
    assert known.runtime_s.domain_check == "unknown"
    assert [one.memory_bytes.domain_check for one in (known, out, new)] == ["yes", "no", "no"]
    assert out.compute_utilization.domain_check == "no"  # the ratio was not measured
    assert not out.step_time_s.in_domain


def test_without_recorded_releases_no_release_is_new(release, job, cpu):
    predictor = Predictor(release)
    asked = [predict_one(predictor, with_version(job(), v), cpu).high for v in ("1.10", "2.13")]

    assert asked[0] == asked[1]


def together(predictor, job, device, members):
    (forecast,) = predictor.predict_interference(
        [Colocation(device, (job,) * members, (Share(0.5, "cpu-quota"),) * members)]
    )
    (inside,) = {slowdown.in_domain for slowdown in forecast.slowdowns}
    return inside


def test_more_members_than_any_trained_co_location_had_are_out_of_domain(release_with, job, cpu):
    predictor = Predictor(release_with(max_members={"processor": 3}))

    assert [together(predictor, job(), cpu, n) for n in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_device_without_trained_co_locations_supports_exclusive_jobs_only(release_with, job, cpu):
    trained = {key: ["cpu-2"] for key in QUANTITIES} | {"interference": ["h200"]}
    predictor = Predictor(release_with(trained_devices=trained))

    assert predict_one(predictor, job(), cpu).in_domain
    assert together(predictor, job(), cpu, 1)
    assert not together(predictor, job(), cpu, 2)


@pytest.mark.parametrize(
    ("predictor", "factors"),
    [
        ("step_time", (1.0, 2.0, float("nan"), 4.0, 5.0)),
        ("step_time", (1.0, 2.0, 3.0, 4.0, float("inf"))),
        ("memory", (-1.0, 2.0, 3.0, 4.0, 5.0)),
        ("memory", (1.0, 2.0, 3.0, 2.5, 5.0)),
        ("compute_utilization", (float("nan"),) * 5),
    ],
)
def test_invalid_model_output_never_reaches_a_client(
    release_with, handmade_models, job, cpu, predictor, factors
):
    column = "roofline_s" if predictor == "step_time" else "memory_prior_bytes"
    models = handmade_models.all() | {predictor: handmade_models.column_times(column, factors)}
    broken = Predictor(release_with(models=models))

    with pytest.raises(ReleaseError, match=rf"{predictor}\.onnx: predicted quantiles .* finite"):
        broken.predict([Placement(job(), cpu)])
    with pytest.raises(ReleaseError, match=f"{predictor}.onnx"):
        broken.warm_up()


@pytest.mark.parametrize("factors", [(-3.0, 0.5, 1.0, 2.0, 3.0), (float("nan"),) * 5])
def test_a_slowdown_below_one_or_nan_never_reaches_a_client(
    release_with, handmade_models, job, cpu, factors
):
    models = handmade_models.all() | {"interference": handmade_models.others_utilization(factors)}
    broken = Predictor(release_with(models=models))

    with pytest.raises(ReleaseError, match=r"interference\.onnx"):
        broken.predict_interference([Colocation(cpu, (job(), job()), (Share(0.5), Share(0.5)))])


def test_bytes_that_are_not_a_model_are_rejected_at_once(release_with, handmade_models):
    with pytest.raises(ReleaseError, match=r"memory\.onnx: ONNX Runtime cannot load it"):
        Predictor(release_with(models=handmade_models.all() | {"memory": b"junk"}))


def test_a_model_with_other_inputs_is_refused_at_once(release_with, handmade_models):
    swapped = handmade_models.all()
    swapped["memory"] = swapped["interference"]

    with pytest.raises(ReleaseError, match=r"memory\.onnx: takes \['mask', 'members'\]"):
        Predictor(release_with(models=swapped))


def test_a_model_with_other_levels_is_refused_at_the_first_prediction(
    release_with, handmade_models
):
    models = handmade_models.all()
    models["memory"] = handmade_models.column_times("memory_prior_bytes", (1.0, 2.0, 3.0))

    with pytest.raises(ReleaseError, match=r"answered with shape \(1, 3\), must be \(1, 5\)"):
        Predictor(release_with(models=models)).warm_up()


def test_a_model_failure_is_an_error_of_the_release(release_with, handmade_models):
    nodes = [helper.make_node("Reshape", ["features", "shape"], ["quantiles"])]
    shape = {"shape": np.array([7, 5], dtype=np.int64)}
    features = {"features": ["rows", len(columns("full"))]}
    failing = handmade_models.onnx_bytes(nodes, shape, features, ["rows", 5])

    predictor = Predictor(release_with(models=handmade_models.all() | {"memory": failing}))
    with pytest.raises(ReleaseError, match=r"memory\.onnx: ONNX Runtime failed"):
        predictor.warm_up()


NO_MARGINS: dict[str, Any] = {"novelty_margins": {name: {} for name in QUANTITIES}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"setup_s": {"cpu-2": (1.0, 2.0, 3.0, 4.0, 5.0)}}, r"setup_s\[''\] is \[\]"),
        ({"setup_s": {"": (1.0, 2.0)}}, "must be 5 non-decreasing numbers"),
        ({"setup_s": {"": (2.0, 1.0, 3.0, 4.0, 5.0)}}, "must be 5 non-decreasing numbers"),
        ({"setup_s": {"": (1.0, 2.0, float("nan"), 4.0, 5.0)}}, r"setup_s\.\[2\] is not finite"),
        ({"levels": (0.1, 0.2, 0.3, 0.4, 0.5)}, "levels that the release does not have"),
        ({"levels": (0.1, 0.2, 0.3, 0.4, 0.5)} | NO_MARGINS, r"no median or no 0\.8 interval"),
        ({"levels": (0.05, 0.1, 0.6, 0.9, 0.95)} | NO_MARGINS, r"no median or no 0\.8 interval"),
    ],
)
def test_an_incomplete_manifest_is_rejected_at_once(release_with, changes, said):
    with pytest.raises(ReleaseError, match=said):
        Predictor(release_with(**changes))


def test_solo_forecasts_are_computed_once_per_job_device_share_and_coverage(release, job, cpu):
    predictor, features = Predictor(release), job()
    half, faster = Share(0.5), replace(cpu, op_overhead_s=cpu.op_overhead_s / 2)

    def asked(device, share=half, coverage=0.8):
        return predictor.predict([Placement(features, device, share)], coverage=coverage)[0]

    first = asked(cpu)
    assert asked(cpu) is first
    others = [asked(faster), asked(cpu, Share(1.0)), asked(cpu, coverage=0.9)]
    assert all(other != first for other in others)
    # What is kept is what is worked out of many at once.
    both = predictor.predict([Placement(features, cpu, half), Placement(features, faster, half)])
    assert both == [first, others[0]]


def test_the_cache_of_a_job_is_bounded_and_freed_with_it(release, job, cpu, monkeypatch):
    monkeypatch.setattr("presage.serving.predictor.predictor.MAX_CACHED", 3)
    predictor, features = Predictor(release), job()
    for step in range(1, 10):
        predict_one(predictor, features, cpu, share=step / 10)
        assert len(predictor.cache.get(features)) <= 3
    assert len(predictor.cache) == 1
    del features
    assert len(predictor.cache) == 0
