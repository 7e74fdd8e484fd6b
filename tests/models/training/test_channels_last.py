"""Inputs that a network reads a second time where images are channels-last."""

import numpy as np
import onnxruntime as ort
import pytest
import torch

from presage.features.columns.schema import columns
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.calibration.margins import Margins
from presage.models.networks.predictors import ScalarPredictor
from presage.models.onnx_export.export import export
from presage.models.training.fine_tuning import (
    TrainedNetworks,
    read_scalar_networks,
    write_networks,
)
from presage.models.training.fit import (
    LEVELS,
    FitConfig,
    fit_scalar,
    predict_quantiles,
    select_inputs,
    transform_features,
)

CONFIG = FitConfig(hidden=16, steps=400, learning_rate=0.02, weight_decay=0.1, ensemble=1, seed=0)
COLUMNS = columns("full")
TARGET = QUANTITIES["step_time"]
INPUTS = select_inputs(TARGET.inputs, "full")
LAYOUT, SHARE = (
    COLUMNS.index(n) for n in ("channels_last", "time_share.DepthwiseConv2D forward 9 points")
)
MARGINS = Margins({0.05: 0.03, 0.1: 0.01}, {})
NONE = Margins({}, {})


def rows(n: int):
    """Return rows whose step is slower by its depthwise share where images are channels-last."""
    rng = np.random.default_rng(0)
    raw = np.full((n, len(COLUMNS)), 0.5)
    raw[:, SHARE] = rng.uniform(0, 1, n)
    raw[:, LAYOUT] = rng.integers(0, 2, n)
    factor = 1 + 3 * raw[:, LAYOUT] * raw[:, SHARE]
    return raw, raw[:, COLUMNS.index("roofline_s")] * factor


@pytest.fixture(scope="module")
def fitted():
    raw, measured = rows(400)
    x, y = transform_features(raw, "full"), TARGET.to_learnt(measured, raw)
    return raw, measured, fit_scalar(x, y, np.ones((1, len(y))), INPUTS, CONFIG)


def test_layout_inputs_are_the_convolution_shares_of_step_time():
    assert {COLUMNS[i].split()[0].partition(".")[2] for i in INPUTS.layout_columns} == {
        "Conv2D", "PointwiseConv2D", "GroupedConv2D", "DepthwiseConv2D"
    }  # fmt: skip
    assert set(INPUTS.layout_columns) < set(INPUTS.columns)
    for name in ("memory", "compute_utilization"):
        assert select_inputs(QUANTITIES[name].inputs, "full").layout_columns == ()


def test_layout_inputs_are_those_of_zero_shares_for_contiguous_images(fitted):
    raw, _, stack = fitted
    nothing = raw.copy()
    nothing[:, INPUTS.layout_columns] = 0
    found, empty = (
        stack.read(torch.from_numpy(transform_features(m, "full")).float()) for m in (raw, nothing)
    )
    again, is_nhwc = len(INPUTS.columns), raw[:, LAYOUT] == 1

    torch.testing.assert_close(found[~is_nhwc, again:], empty[~is_nhwc, again:])
    position = INPUTS.columns.index(SHARE)
    second = again + INPUTS.layout_columns.index(SHARE)
    torch.testing.assert_close(found[is_nhwc, second], found[is_nhwc, position])


def test_the_effect_of_the_layout_is_learnt_and_exported(fitted, tmp_path):
    raw, measured, stack = fitted
    write_networks(TrainedNetworks(stack, MARGINS), tmp_path / "it.npz")
    again = read_scalar_networks(tmp_path / "it.npz").stack
    x = transform_features(raw, "full")
    expected = TARGET.to_measured(predict_quantiles(stack, x)[0], raw)
    content = export(
        ScalarPredictor(again, TARGET, NONE),
        {"features": (torch.from_numpy(raw[:2]).float(), ("rows",))},
    )
    found = ort.InferenceSession(content).run(None, {"features": raw.astype(np.float32)})[0]

    middle = LEVELS.index(0.5)
    assert np.median(np.abs(expected[:, middle] / measured - 1)) < 0.03
    np.testing.assert_array_equal(predict_quantiles(again, x), predict_quantiles(stack, x))
    np.testing.assert_allclose(found, expected, rtol=2e-4)
