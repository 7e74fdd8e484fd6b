"""Contract of every PredictionBackend, in process and over a real server."""

from dataclasses import replace
from itertools import permutations

import pytest

from presage.errors import InvalidJobError, UnknownDeviceError
from presage.features.colocation import Colocation
from presage.features.columns.schema import columns, matrix
from presage.features.device.device import Share, catalogue
from presage.features.job.job_description import JobFeatures, memory_from_peak
from presage.features.placement import Placement
from presage.features.scaling.scaling_request import (
    GpuPlacement,
    MeasuredStep,
    ScalingRequest,
)
from presage.serving.predictor.prediction_backend import PredictionBackend

QUARTERS = (Share(0.25, "cpu-quota"), Share(0.5, "cpu-quota"), Share(1.0, "cpu-quota"))


def quantities(forecast):
    return (
        forecast.compute_utilization,
        forecast.memory_bytes,
        forecast.step_time_s,
        forecast.runtime_s,
    )


def test_one_forecast_per_placement_in_order(backend: PredictionBackend, job, cpu):
    jobs = [job(f"job-{batch}", batch_size=batch) for batch in (64, 1, 128)]
    placements = [Placement(j, d) for j in jobs for d in (cpu, catalogue()["v100"])]

    forecasts = backend.predict(placements)

    assert len(forecasts) == len(placements)
    for placement, forecast in zip(placements, forecasts, strict=True):
        expected = 2.0 * matrix([placement])[0, columns("full").index("roofline_s")]
        assert forecast.step_time_s.median == pytest.approx(expected, rel=1e-6)


def test_every_forecast_has_its_unit_release_and_an_interval_around_its_median(
    backend, job, cpu, release
):
    (forecast,) = backend.predict([Placement(job(), cpu)])

    units = [f.unit for f in quantities(forecast)]
    assert units == ["fraction", "bytes", "seconds", "seconds"]
    for quantity in quantities(forecast):
        assert quantity.low < quantity.median < quantity.high
        assert quantity.release_id == release.release_id
        assert quantity.in_domain


def memory_prior_bytes(job, cpu):
    return matrix([Placement(job, cpu)])[0, columns("full").index("memory_prior_bytes")]


@pytest.mark.parametrize(("coverage", "ends"), [(0.8, (1, 3)), (0.9, (0, 4))])
def test_the_interval_has_the_requested_coverage(backend, job, cpu, constants, coverage, ends):
    (forecast,) = backend.predict([Placement(job(), cpu)], coverage=coverage)

    prior = memory_prior_bytes(job(), cpu)
    memory = forecast.memory_bytes
    assert memory.coverage == coverage
    assert (memory.low, memory.median, memory.high) == pytest.approx(
        (constants.memory[ends[0]] * prior, 2.0 * prior, constants.memory[ends[1]] * prior)
    )


def test_eighty_percent_is_the_default(backend, job, cpu):
    placements = [Placement(job(), cpu)]

    assert backend.predict(placements) == backend.predict(placements, coverage=0.8)


@pytest.mark.parametrize("coverage", [0.0, 0.5, 1.5, float("nan")])
def test_the_error_of_a_missing_coverage_lists_those_of_the_release(backend, job, cpu, coverage):
    with pytest.raises(InvalidJobError, match=r"request one of 0\.8, 0\.9"):
        backend.predict([Placement(job(), cpu)], coverage=coverage)
    with pytest.raises(InvalidJobError, match=r"request one of 0\.8, 0\.9"):
        backend.predict_interference([Colocation(cpu, (job(),), (Share(),))], coverage=coverage)


@pytest.mark.parametrize("kind", ["cpu-2", "v100"])
def test_runtime_is_setup_and_iterations_times_step_time(backend, job, cpu, constants, kind):
    device = cpu if kind == "cpu-2" else catalogue()[kind]
    setup_s = constants.setup_s.get(kind, constants.setup_s[""])  # v100 was not measured

    (forecast,) = backend.predict([Placement(job(iterations=12_345), device)])

    step, runtime = forecast.step_time_s, forecast.runtime_s
    assert runtime.low == pytest.approx(setup_s[1] + 12_345 * step.low)
    assert runtime.median == pytest.approx(setup_s[2] + 12_345 * step.median)
    assert runtime.high == pytest.approx(setup_s[3] + 12_345 * step.high)


def test_utilization_stays_within_the_device(backend, job, cpu):
    (forecast,) = backend.predict([Placement(job(), cpu)], coverage=0.9)

    assert forecast.compute_utilization.low == 0.0
    assert forecast.compute_utilization.high == 1.0


def test_an_empty_request_has_an_empty_response(backend):
    assert backend.predict([]) == []
    assert backend.predict_interference([]) == []


def test_an_exclusive_job_is_not_slowed_down(backend, job, cpu):
    crowd = Colocation(cpu, (job("a"), job("b")), (Share(0.5, "mps"), Share(0.5, "mps")))
    alone = Colocation(cpu, (job(),), (Share(),))

    before, forecast, after = backend.predict_interference([alone, crowd, alone])

    for lone in (before, after):
        (slowdown,) = lone.slowdowns
        assert (slowdown.low, slowdown.median, slowdown.high) == (1.0, 1.0, 1.0)
        assert lone.fits
    assert all(slowdown.low > 1.0 for slowdown in forecast.slowdowns)


def test_each_member_is_slowed_down_by_the_others_and_not_by_the_padding(backend, job, cpu):
    jobs = (job("a"), job("b"), job("c"))
    three = Colocation(cpu, jobs, QUARTERS)
    two = Colocation(cpu, jobs[:2], QUARTERS[:2])

    of_three, of_two = backend.predict_interference([three, two])

    # Utilization is half of the share: 0.125, 0.25, 0.5.
    medians = [slowdown.median for slowdown in of_three.slowdowns]
    assert medians == pytest.approx([1.75, 1.625, 1.375])
    assert [s.high for s in of_three.slowdowns] == pytest.approx([1.9375, 1.78125, 1.46875])
    assert [s.median for s in of_two.slowdowns] == pytest.approx([1.25, 1.125])
    assert {s.unit for s in of_two.slowdowns} == {"slowdown"}


def test_permuting_the_members_permutes_the_forecasts(backend, job, cpu):
    members = [(job("a"), QUARTERS[0]), (job("b", batch_size=8), QUARTERS[1]), (job(), QUARTERS[2])]
    orders = list(permutations(range(3)))
    colocations = [
        Colocation(cpu, tuple(members[i][0] for i in o), tuple(members[i][1] for i in o))
        for o in orders
    ]

    forecasts = backend.predict_interference(colocations)

    reference = forecasts[0]
    for order, forecast in zip(orders, forecasts, strict=True):
        for position, member in enumerate(order):
            ours, theirs = forecast.slowdowns[position], reference.slowdowns[member]
            assert ours.median == pytest.approx(theirs.median, rel=1e-6)
            assert ours.high == pytest.approx(theirs.high, rel=1e-6)
        assert forecast.fit_probability == pytest.approx(reference.fit_probability)


def test_jobs_fit_until_the_sum_of_their_memory_exceeds_the_device(backend, job, cpu):
    beside = memory_prior_bytes(job(memory=memory_from_peak(0, 0)), cpu)
    held = int(cpu.memory_bytes / 4 - beside)  # the median is twice the prior
    half = job("half", memory=memory_from_peak(100_000, held))
    colocations = [
        Colocation(cpu, (half,) * n, (Share(0.25, "mps"),) * n)
        for n in (1, 2, 3)  # half of the memory, all of it, one and a half
    ]

    loose, exact, tight = backend.predict_interference(colocations)

    assert (loose.fits, exact.fits, tight.fits) == (True, True, False)
    assert loose.fit_probability > 0.8
    assert exact.fit_probability == pytest.approx(0.5)
    assert tight.fit_probability < 0.5


def test_an_out_of_domain_job_puts_its_colocation_out_of_domain(backend, job, cpu):
    giant, known = job("giant", batch_size=100_000), job("known")
    shares = (Share(0.5, "mps"), Share(0.5, "mps"))

    strange, usual, elsewhere = backend.predict(
        [Placement(giant, cpu), Placement(known, cpu), Placement(known, catalogue()["h200"])]
    )
    mixed, alike = backend.predict_interference(
        [Colocation(cpu, (giant, known), shares), Colocation(cpu, (known, known), shares)]
    )

    assert not any(f.in_domain for f in quantities(strange))
    assert all(f.in_domain for f in quantities(usual))
    assert not any(f.in_domain for f in quantities(elsewhere))
    assert [s.in_domain for s in mixed.slowdowns] == [False, False]
    assert [s.in_domain for s in alike.slowdowns] == [True, True]


def test_devices_of_the_release_take_precedence_over_the_catalogue(backend, cpu):
    assert backend.device("cpu-2") == cpu != catalogue()["cpu-2"]
    assert backend.device("v100") == catalogue()["v100"]


def test_the_error_of_an_unknown_device_names_the_nearest(backend):
    with pytest.raises(UnknownDeviceError, match="did you mean 'h200'"):
        backend.device("h20")


def test_the_release_describes_itself(backend, release):
    info = backend.release()

    assert info.release_id == release.release_id
    assert info.columns == release.columns
    assert info.levels == release.levels
    assert info.schema_hash == release.manifest["schema_hash"]
    assert "MatMul" in info.op_kinds
    assert info.trained_devices == {"cpu-2"}
    assert info.devices["cpu-2"] == release.devices["cpu-2"]
    assert info.devices["h200"] == catalogue()["h200"]
    assert info.metrics == {"step_time": {"mape": 0.125}}
    assert info.loaded_at_unix_s > 1.7e9


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"op_overhead_s": float("nan")}, "op_overhead_s"),
        ({"op_overhead_s": -1.0}, "op_overhead_s"),
        ({"compute_capability": float("inf")}, "compute_capability"),
        ({"peak_flops_per_s": {"fp32": 1e12, "bf16": 0.0}}, "bf16|features cannot be computed"),
    ],
)
def test_an_impossible_device_is_rejected(backend, job, cpu, changes, named):
    with pytest.raises(InvalidJobError, match=named):
        backend.predict([Placement(job(precision="bf16"), replace(cpu, **changes))])


def test_numbers_beyond_the_models_are_rejected(backend, job, cpu):
    features: JobFeatures = job()
    huge = replace(features, op_stats=(replace(features.op_stats[0], flops=1e300),))

    with pytest.raises(InvalidJobError, match=r"'(matmul_)?flops' is 1e\+300|'forward_flops'"):
        backend.predict([Placement(huge, cpu)])


# Scaling --------------------------------------------------------------------------------------


def test_each_placement_has_a_step_and_a_speedup_in_order(backend, job, cpu, release):
    sizes = (GpuPlacement(4, 2), GpuPlacement(1), GpuPlacement(2))
    request = ScalingRequest(job(batch_size=64), cpu, sizes)

    answer = backend.predict_scaling(request)

    apart, one, two = answer.forecasts
    assert (answer.release_id, answer.coverage, answer.fitted) == (release.release_id, 0.8, False)
    (solo,) = backend.predict([Placement(job(batch_size=64), cpu)])
    assert one.step_time_s.median == pytest.approx(solo.step_time_s.median)
    assert one.speedup.median == one.speedup.low == one.speedup.high == 1.0
    assert one.sync_share == 0.0
    for found in (apart, two):
        assert found.step_time_s.low < found.step_time_s.median < found.step_time_s.high
        assert found.speedup.low < found.speedup.median < found.speedup.high
        assert 0 < found.sync_share < 1
        assert (found.step_time_s.unit, found.speedup.unit) == ("seconds", "speed-up")
        assert found.step_time_s.release_id == release.release_id
        assert found.step_time_s.in_domain
    assert [found.extrapolated for found in answer.forecasts] == [True, False, False]


def test_measured_steps_correct_the_forecast(backend, job, cpu):
    request = ScalingRequest(job(), cpu, (GpuPlacement(2),))
    before = backend.predict_scaling(request).forecasts[0].step_time_s
    measured = (MeasuredStep(GpuPlacement(2), 3 * before.median),)
    after = backend.predict_scaling(replace(request, measured=measured), coverage=0.9)

    assert after.forecasts[0].step_time_s.median == pytest.approx(3 * before.median, rel=0.1)
    assert after.coverage == 0.9


@pytest.mark.parametrize("coverage", [0.0, 1.0, float("nan")])
def test_an_impossible_coverage_of_scaling_is_named(backend, job, cpu, coverage):
    with pytest.raises(InvalidJobError, match="coverage"):
        backend.predict_scaling(ScalingRequest(job(), cpu, (GpuPlacement(2),)), coverage=coverage)


def test_features_out_of_range_at_another_batch_are_rejected_without_the_name(backend, job, cpu):
    huge = job("secret", batch_size=1)
    op = replace(huge.op_stats[0], flops=1e29)
    request = ScalingRequest(replace(huge, op_stats=(op,)), cpu, (GpuPlacement(1, 1, 1e9),))

    with pytest.raises(InvalidJobError, match="with the batch size of a placement") as caught:
        backend.predict_scaling(request)
    assert "secret" not in str(caught.value)
