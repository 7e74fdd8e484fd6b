from math import exp, log, nan

import numpy as np
import pytest

from presage.features.colocation_member import MEMBER_COLUMNS, SOLO_PROFILE, member_matrix
from presage.features.columns.schema import matrix
from presage.features.device.device import Share
from presage.features.placement import Placement
from tests.features import examples
from tests.features.examples import device, features, node

PLACEMENT = Placement(features(node(), node("Relu", phase="backward")), device(), Share(0.5, "mps"))


def members(*placements, **profile):
    solo = {name: np.full(len(placements), profile.get(name, nan)) for name in SOLO_PROFILE}
    return member_matrix(matrix(placements), solo)


def column(name, **profile):
    return members(PLACEMENT, **profile)[0, MEMBER_COLUMNS.index(name)]


def test_solo_measurements_take_precedence():
    measured = {"step_time": 0.5, "memory": 8 << 30, "compute_utilization": 0.4}
    roofline_s = examples.column("roofline_s", PLACEMENT)

    assert column("log step time", **measured) == log(0.5)
    assert column("log memory / the device's", **measured) == pytest.approx(log(8 / 32))
    assert column("utilization", **measured) == 0.4
    assert exp(column("log roofline / step time", **measured)) == pytest.approx(
        roofline_s / 0.5, abs=2e-4
    )


@pytest.mark.parametrize("nothing", [nan, 0.0])
def test_missing_measurements_are_replaced_by_first_principles(nothing):
    profile = dict.fromkeys(SOLO_PROFILE, nothing)
    step_s = exp(column("log step time", **profile))
    roofline_s = examples.column("roofline_s", PLACEMENT)

    assert roofline_s < step_s < roofline_s + 0.1
    assert column("utilization", **profile) == pytest.approx(roofline_s / step_s)
    assert exp(column("log memory / the device's", **profile)) == pytest.approx(
        ((1 << 28) + PLACEMENT.job.peak_live_bytes) / (32 << 30), rel=0.05
    )


def test_columns_are_finite_and_distinguish_training_from_inference():
    rows = members(PLACEMENT, Placement(features(), device()))

    assert rows.shape == (2, len(MEMBER_COLUMNS))
    assert np.isfinite(rows).all()
    assert list(rows[:, MEMBER_COLUMNS.index("trains")]) == [1, 0]
    assert list(rows[:, MEMBER_COLUMNS.index("log share")]) == [log(0.5), 0]


def test_no_members_have_no_rows():
    assert members().shape == (0, len(MEMBER_COLUMNS))
