"""Quantiles of a release that a request selects."""

from __future__ import annotations

import pytest

from presage.errors import InvalidJobError
from presage.features.quantities.quantity_registry import job_quantities
from presage.serving.predictor.quantiles import select_quantiles
from presage.serving.v1 import prediction_pb2 as pb


def test_the_quantities_are_those_of_the_protocol_in_its_order():
    named = [field.name for field in pb.JobForecast.DESCRIPTOR.fields]
    others = {"error", "additional"}
    in_proto = [name for name, one in job_quantities().items() if one.in_proto]
    assert [name for name in named if name not in others] == in_proto


@pytest.mark.parametrize(("coverage", "ends"), [(0.8, (1, 3)), (0.9, (0, 4)), (0.8000001, (1, 3))])
def test_the_median_and_the_ends_of_the_interval(release, coverage, ends):
    selected = select_quantiles(release, coverage)

    assert selected.positions == (2, *ends)
    assert selected.coverage == coverage
    assert selected.levels == ()


def test_additional_quantiles_keep_the_order_of_the_request(release):
    selected = select_quantiles(release, 0.8, [0.95, 0.05, 0.95])

    assert selected.positions == (2, 1, 3, 4, 0, 4)
    assert selected.levels == (0.95, 0.05, 0.95)


@pytest.mark.parametrize("coverage", [0.0, 0.5, 1.0, -0.8, float("nan"), float("inf")])
def test_an_interval_that_the_release_lacks_is_an_error(release, coverage):
    with pytest.raises(InvalidJobError, match=rf"in release {release.release_id}; .* 0\.8, 0\.9"):
        select_quantiles(release, coverage)


@pytest.mark.parametrize("level", [0.2, 0.0, float("nan"), 0.9500001])
def test_a_quantile_that_the_release_lacks_is_an_error(release, level):
    with pytest.raises(InvalidJobError, match=r"^levels\[1\] is not a quantile .* 0\.05, 0\.1"):
        select_quantiles(release, 0.8, [0.05, level])
