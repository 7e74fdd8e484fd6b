"""Which forecasts are called the worst, and what is said of why."""

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


def quiet(n=5, family="mlp", **said):
    """Other rows of a family, all forecast well."""
    return [row(1.0, 1.05, job_id=f"{family}/{i}", family=family, **said) for i in range(n)]


def test_ten_times_longer_is_worse_than_half_as_long():
    found = worst([row(10.0, 1.0, job_id="longer"), row(1.0, 2.0, job_id="shorter"), *quiet()])

    assert found["job_id"].tolist()[:2] == ["longer", "shorter"]
    assert found["error"].tolist()[:2] == pytest.approx([-0.9, 1.0])


def test_each_split_has_its_own_worst_rows():
    rows = quiet(4) + quiet(4, split="family")

    assert worst(rows, count=3)["split"].tolist() == ["family"] * 3 + ["job"] * 3


def test_a_row_out_of_domain_says_so_first():
    strange = row(1.0, 9.0, in_domain=False, reason="no other family has FFT")

    assert first_why([strange, *quiet(in_domain=True)]) == "out of domain: no other family has FFT"


def test_a_row_out_of_domain_without_a_reason_is_out_of_domain_all_the_same():
    assert first_why([row(1.0, 9.0, in_domain=False), *quiet()]) == "out of domain"


def test_a_forecast_that_knew_it_was_unsure_is_told():
    said = first_why([row(1.0, 4.0, half_width=0.8), *quiet()])

    assert said.startswith(
        "inside its own 80 % interval, 800 ms to 7.2 s: the forecast was uncertain"
    )


def test_both_can_be_said_of_one_row():
    strange = row(1.0, 4.0, half_width=0.8, in_domain=False, reason="new")

    assert first_why([strange, *quiet()]).startswith("out of domain: new; inside its own 80 %")


def test_what_was_measured_twice_and_differently_cannot_be_met():
    rows = [row(0.06, 0.031), row(0.031, 0.031, campaign="another"), *quiet()]

    assert first_why(rows) == (
        "measured 60 ms here but 31 ms another time: one forecast cannot match both"
    )


def test_rows_that_were_told_apart_are_no_twins():
    rows = [row(0.06, 0.031), row(0.031, 0.05, campaign="another"), *quiet()]

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

    assert first_why([slow, *quiet()], beside=[idle]) == (
        "the same run used only 40 % of the device, predicted 80 %: it may have been disturbed"
    )


def test_the_same_is_told_of_its_utilization():
    frames = {
        "compute_utilization": judged(table([row(0.4, 0.8), *quiet()])),
        "step_time": judged(table([row(3.0, 1.0)])),
    }
    found = worst_rows(frames, "compute_utilization")["why"].iloc[0]

    assert found.startswith("the same run took 3 s per step, predicted 1 s: it may have been")


@pytest.mark.parametrize("other", [row(0.8, 0.8), row(0.4, 0.8, campaign="another")])
def test_a_slow_run_that_was_busy_or_another_was_not_disturbed(other):
    assert "disturbed" not in first_why([row(3.0, 1.0), *quiet()], beside=[other])


def test_a_family_that_leans_one_way_is_blamed_as_a_whole():
    rows = [row(4.0, 1.0), *(row(2.0, 1.0, job_id=f"mlp/{i}") for i in range(4))]

    assert first_why(rows) == ("forecasts of mlp are too low: -50 % in the median of 4 other rows")


def test_a_row_whose_family_is_forecast_well_stands_alone():
    assert first_why([row(9.0, 1.0), *quiet(4)]) == (
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
def test_few_rows_say_nothing_of_a_family(others, said):
    assert first_why([row(9.0, 1.0), *quiet(others)]) == f"{said} of mlp for comparison"


@pytest.mark.parametrize(("measured", "inside"), [(1.1, "80 %"), (1.25, "90 %"), (1.4, "no")])
def test_the_narrowest_interval_is_named(measured, inside):
    assert inside_interval(table([row(measured, 1.0)]).iloc[0]) == inside


def test_a_row_that_was_measured_as_nothing_is_the_worst_and_is_explained():
    found = worst([row(0.0, 0.5, job_id="idle"), *quiet()], predictor="compute_utilization")

    assert found["job_id"].iloc[0] == "idle"
    assert found["why"].iloc[0]


def test_every_bad_forecast_has_a_reason_and_no_row_is_named_twice():
    frames = {name: judged(told) for name, told in forecasts().items()}
    for predictor in frames:
        found = worst_rows(frames, predictor)

        assert (found["why"].str.len() > 0).all()
        assert not found.duplicated(["split", "job_id"]).any()
        assert (found.groupby("split").size() == 10).all()


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=15))
def test_no_row_left_out_is_further_off_than_one_that_is_named(pairs):
    rows = [row(y, p, job_id=str(i)) for i, (y, p) in enumerate(pairs)]
    found = worst(rows, count=5)
    times = {str(i): max(y / p, p / y) for i, (y, p) in enumerate(pairs)}
    named = set(found["job_id"])

    assert len(named) == min(5, len(pairs))
    rest = [times[name] for name in times.keys() - named]
    assert min(times[name] for name in named) >= max(rest, default=0) * (1 - 1e-9)
