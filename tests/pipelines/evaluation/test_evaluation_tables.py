"""Evaluation tables: worked examples, and properties of any rows."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.pipelines.evaluation.evaluation_tables import (
    GROUPS,
    calibration_guarantee,
    calibration_rows,
    error_by,
    figures,
    judged,
)
from presage.pipelines.stages.evaluate import score_forecasts
from tests.pipelines.evaluation.forecast_examples import forecasts, row, table


def test_figures_by_hand():
    found = figures(table([row(1.0, 1.1), row(2.0, 2.0), row(4.0, 2.0)]))

    assert found["rows"] == 3
    assert found["mape"] == pytest.approx((10 + 0 + 50) / 3)
    assert found["median_ape"] == pytest.approx(10)
    assert found["coverage_80%"] == pytest.approx(200 / 3)  # of the last, 2.4 is the upper end
    assert found["interval_width_80%"] == pytest.approx(40)
    assert found["interval_width_90%"] == pytest.approx(60)


def test_only_measured_rows_of_the_served_networks_are_scored():
    rows = judged(table([row(1.0, 1.1), row(math.nan, 1.0), row(1.0, 3.0, features="published")]))

    assert rows["predicted"].tolist() == [1.1]
    assert rows["error"].tolist() == pytest.approx([0.1])
    assert rows["domain"].tolist() == ["not said"]


def test_a_row_measured_as_zero_has_no_percentage():
    assert judged(table([row(0.0, 0.5)]))["error"].isna().all()


def test_the_domain_is_a_label_and_a_missing_reason_is_empty():
    rows = [
        row(1.0, 1.0, in_domain=True, reason=None),
        row(1.0, 2.0, in_domain=False, reason="new operator"),
    ]
    found = judged(table(rows))

    assert found["domain"].tolist() == ["in domain", "out of domain"]
    assert found["reason"].tolist() == ["", "new operator"]


def test_a_colocation_is_identified_by_its_members():
    rows = judged(table([row(1.0, 1.0, colocation="a + b in x @ cpu-2 in c on m")]))

    assert rows["together"].tolist() == ["a + b in x @ cpu-2"]


def test_error_by_device_by_hand():
    rows = [
        row(1.0, 1.2, device_kind="h100"),
        row(1.0, 0.9, device_kind="h100"),
        row(1.0, 0.7, device_kind="h100"),
        row(1.0, 2.0, device_kind="cpu-2"),
    ]
    found = error_by("device", judged(table(rows))).set_index("device")

    assert found["rows"].to_dict() == {"cpu-2": 1, "h100": 3}
    assert found.loc["h100", "median_ape"] == pytest.approx(20)
    assert found.loc["h100", "leaning"] == pytest.approx(-10)
    assert found.loc["cpu-2", "leaning"] == pytest.approx(100)
    assert found["coverage_80%"].to_dict() == pytest.approx({"cpu-2": 0, "h100": 200 / 3})


def test_coverage_is_separate_in_and_out_of_domain():
    rows = [row(1.0, 1.0, in_domain=True)] * 3 + [row(1.0, 5.0, in_domain=False)]
    found = error_by("domain", judged(table(rows))).set_index("domain")

    assert found["coverage_80%"].to_dict() == {"in domain": 100, "out of domain": 0}
    assert found["rows"].to_dict() == {"in domain": 3, "out of domain": 1}


def by_family(error, *, in_domain, rows=20, **changes):
    """Return rows of left-out families with this relative error."""
    return [row(1.0, 1 + error, split="family", in_domain=in_domain, **changes)] * rows


def test_the_guarantee_says_how_much_larger_errors_out_of_domain_are():
    rows = [
        row(1.0, 1.0),
        *by_family(0.3, in_domain=False),
        *by_family(0.2, in_domain=True),
        *by_family(0.1, in_domain=False, device_class="gpu"),
        *by_family(0.1, in_domain=True, device_class="gpu", rows=19),
    ]
    found = calibration_guarantee(judged(table(rows)))

    assert found["class processor"] == {"domain_error_ratio": pytest.approx(1.5)}
    assert "class gpu" not in found  # too few rows in domain


def test_calibration_by_hand():
    told = {"memory": table([row(y, 1.0) for y in (0.6, 0.75, 1.0, 1.5)])}
    found = calibration_rows(told).set_index("promised")["observed"]

    assert found.to_dict() == {0.05: 0.25, 0.1: 0.5, 0.5: 0.75, 0.9: 0.75, 0.95: 0.75}


@pytest.mark.parametrize("group", GROUPS)
def test_groups_partition_the_rows_and_their_means_give_the_total(group):
    for predictor, told in forecasts().items():
        rows = judged(told)
        by, whole = error_by(group, rows), score_forecasts(told)
        for split, part in by.groupby("split"):
            weights = part["rows"] / part["rows"].sum()
            total = whole[str(split)]["mlp"]
            assert part["rows"].sum() == total["rows"], predictor
            for mean in ("mape", "within_10pct", "mae", "coverage_80%", "coverage_90%"):
                assert (weights * part[mean]).sum() == pytest.approx(total[mean])


values = st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=20)


@given(values)
def test_laws_of_any_table(pairs):
    rows = judged(table([row(measured, predicted) for measured, predicted in pairs]))
    by = error_by("family", rows)
    observed = calibration_rows({"memory": rows})["observed"].to_numpy()

    assert by["rows"].sum() == len(pairs)
    assert (by["coverage_80%"] <= by["coverage_90%"]).all()
    assert (by["median_ape"].abs() >= by["leaning"].abs() - 1e-9).all()
    assert (np.diff(observed) >= 0).all()  # quantiles do not cross


@given(values, st.floats(1e-3, 1e3))
def test_a_relative_error_has_no_unit(pairs, times):
    def relative(factor: float) -> pd.Series:
        rows = [row(measured * factor, predicted * factor) for measured, predicted in pairs]
        return judged(table(rows))["error"]

    assert relative(times).tolist() == pytest.approx(relative(1.0).tolist(), abs=1e-9)
