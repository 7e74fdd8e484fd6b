"""Selection of the worst forecasts, and their explanations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.pipelines.evaluation.evaluation_tables import judged
from presage.pipelines.evaluation.worst_rows import inside_interval, worst_rows
from tests.pipelines.evaluation.forecast_examples import forecasts, row, table


def worst(rows, predictor="step_time", beside=None, count=10):
    frames = {predictor: judged(table(rows))}
    if beside is not None:
        frames["compute_utilization"] = judged(table(beside))
    return worst_rows(frames, predictor, count=count)


def first_why(rows, **options):
    return worst(rows, **options)["why"].iloc[0]


def accurate_rows(n=5, family="mlp", **said):
    """Return other rows of a family, all predicted well."""
    return [row(1.0, 1.05, job_id=f"{family}/{i}", family=family, **said) for i in range(n)]


def test_ten_times_longer_is_worse_than_half_as_long():
    found = worst(
        [row(10.0, 1.0, job_id="longer"), row(1.0, 2.0, job_id="shorter"), *accurate_rows()]
    )

    assert found["job_id"].tolist()[:2] == ["longer", "shorter"]
    assert found["error"].tolist()[:2] == pytest.approx([-0.9, 1.0])


def test_each_split_has_its_own_worst_rows():
    rows = accurate_rows(4) + accurate_rows(4, split="family")

    assert worst(rows, count=3)["split"].tolist() == ["family"] * 3 + ["job"] * 3


def test_out_of_domain_is_the_first_explanation():
    strange = row(1.0, 9.0, in_domain=False, reason="no other family has FFT")

    assert (
        first_why([strange, *accurate_rows(in_domain=True)])
        == "out of domain: no other family has FFT"
    )


def test_an_out_of_domain_row_without_a_reason_is_still_explained_so():
    assert first_why([row(1.0, 9.0, in_domain=False), *accurate_rows()]) == "out of domain"


def test_a_wide_interval_is_an_explanation():
    said = first_why([row(1.0, 4.0, half_width=0.8), *accurate_rows()])

    assert said.startswith(
        "inside its own 80 % interval, 800 ms to 7.2 s: the forecast was uncertain"
    )


def test_one_row_can_have_both_explanations():
    strange = row(1.0, 4.0, half_width=0.8, in_domain=False, reason="new")

    assert first_why([strange, *accurate_rows()]).startswith(
        "out of domain: new; inside its own 80 %"
    )


def test_contradictory_measurements_are_an_explanation():
    rows = [row(0.06, 0.031), row(0.031, 0.031, campaign="another"), *accurate_rows()]

    assert first_why(rows) == (
        "measured 60 ms here but 31 ms another time: one forecast cannot match both"
    )


def test_rows_with_different_forecasts_are_not_twins():
    rows = [row(0.06, 0.031), row(0.031, 0.05, campaign="another"), *accurate_rows()]

    assert "another time" not in first_why(rows)


def test_two_members_of_one_colocation_can_be_twins_and_of_two_cannot():
    def victim(measured, others):
        return row(measured, 2.0, colocation=f"mlp/a + {others} @ cpu-2 in c on m")

    same = [victim(8.0, "mlp/a"), victim(2.0, "mlp/a")]
    other = [victim(8.0, "mlp/a"), victim(2.0, "vgg/b")]

    assert "measured 8.00 x here but 2.00 x" in first_why(same, predictor="interference")
    assert "another time" not in first_why(other, predictor="interference")


def test_a_run_that_was_slow_and_idle_may_have_been_disturbed():
    slow, idle = row(3.0, 1.0), row(0.4, 0.8)

    assert first_why([slow, *accurate_rows()], beside=[idle]) == (
        "the same run used only 40 % of the device, predicted 80 %: it may have been disturbed"
    )


def test_a_disturbed_run_also_explains_its_utilization():
    frames = {
        "compute_utilization": judged(table([row(0.4, 0.8), *accurate_rows()])),
        "step_time": judged(table([row(3.0, 1.0)])),
    }
    found = worst_rows(frames, "compute_utilization")["why"].iloc[0]

    assert found.startswith("the same run took 3 s per step, predicted 1 s: it may have been")


@pytest.mark.parametrize("other", [row(0.8, 0.8), row(0.4, 0.8, campaign="another")])
def test_a_busy_slow_run_is_not_explained_as_disturbed(other):
    assert "disturbed" not in first_why([row(3.0, 1.0), *accurate_rows()], beside=[other])


def test_a_biased_family_is_an_explanation():
    rows = [row(4.0, 1.0), *(row(2.0, 1.0, job_id=f"mlp/{i}") for i in range(4))]

    assert first_why(rows) == ("forecasts of mlp are too low: -50 % in the median of 4 other rows")


def test_a_row_of_an_accurate_family_is_an_outlier():
    assert first_why([row(9.0, 1.0), *accurate_rows(4)]) == (
        "an outlier: the 4 other rows of mlp have a median error of 5 %"
    )


def test_a_family_that_errs_both_ways_is_hard():
    rows = [row(4.0, 1.0)]
    rows += [row(1.0, times, job_id=f"mlp/{times}") for times in (0.5, 0.55, 2.0, 2.2)]

    assert first_why(rows).startswith(
        "mlp is hard to predict: its 4 other rows have a median error of"
    )


@pytest.mark.parametrize(
    ("others", "said"), [(0, "no other row"), (1, "one other row only"), (2, "2 other rows only")]
)
def test_a_family_of_few_rows_is_not_an_explanation(others, said):
    assert first_why([row(9.0, 1.0), *accurate_rows(others)]) == f"{said} of mlp for comparison"


@pytest.mark.parametrize(("measured", "inside"), [(1.1, "80 %"), (1.25, "90 %"), (1.4, "no")])
def test_the_narrowest_interval_is_named(measured, inside):
    assert inside_interval(table([row(measured, 1.0)]).iloc[0]) == inside


def test_a_row_measured_as_zero_is_the_worst_and_is_explained():
    found = worst([row(0.0, 0.5, job_id="idle"), *accurate_rows()], predictor="compute_utilization")

    assert found["job_id"].iloc[0] == "idle"
    assert found["why"].iloc[0]


def test_every_bad_forecast_has_an_explanation_and_no_row_is_listed_twice():
    frames = {name: judged(told) for name, told in forecasts().items()}
    for predictor in frames:
        found = worst_rows(frames, predictor)

        assert (found["why"].str.len() > 0).all()
        assert not found.duplicated(["split", "job_id"]).any()
        assert (found.groupby("split").size() == 10).all()


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=15))
def test_no_unlisted_row_has_a_larger_error_than_a_listed_one(pairs):
    rows = [row(y, p, job_id=str(i)) for i, (y, p) in enumerate(pairs)]
    found = worst(rows, count=5)
    times = {str(i): max(y / p, p / y) for i, (y, p) in enumerate(pairs)}
    named = set(found["job_id"])

    assert len(named) == min(5, len(pairs))
    rest = [times[name] for name in times.keys() - named]
    assert min(times[name] for name in named) >= max(rest, default=0) * (1 - 1e-9)
