"""Boosted trees: torch and ONNX equal scikit-learn, alone and in a predictor's mean."""

import hashlib

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from presage.features.columns.schema import columns
from presage.features.device.device_class import COMPUTE_CAPABILITY
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.calibration.margins import Margins
from presage.models.networks.predictors import route_by_device_class
from presage.models.onnx_export.export import export
from presage.models.onnx_export.fused_solo import FusedScalar
from presage.models.onnx_export.trees import TREES, connect_trees
from presage.models.training.fit import LEVELS, FitConfig, select_inputs
from presage.models.training.fit_trees import convert_trees, fit_trees, make_trees
from tests.models.onnx_export.test_export import DEVICES, make_rows, own_margins, predictor, rows

MIDDLE = LEVELS.index(0.5)
INPUTS = select_inputs(QUANTITIES["step_time"].inputs, "full")
READ = [*INPUTS.columns, *INPUTS.identity]


def onnx_forecasts(trees, x: np.ndarray) -> np.ndarray:
    """Return the forecasts (rows,) of trees by ONNX Runtime."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name, width in (("features", x.shape[1]), (TREES, 1), ("out", 1))
    ]
    same = helper.make_node("Identity", [TREES], ["out"])
    graph = helper.make_graph([same], "trees", values[:2], values[2:])
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    connect_trees(model, trees)
    onnx.checker.check_model(model)
    found = session(model.SerializeToString()).run(None, {"features": x.astype(np.float32)})
    return np.asarray(found[0])[:, 0]


def session(content: bytes) -> ort.InferenceSession:
    return ort.InferenceSession(content, providers=["CPUExecutionProvider"])


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 60),
    width=st.integers(1, 4),
    distinct=st.integers(1, 40),
    scale=st.sampled_from([1e-6, 1.0, 1e9]),
)
def test_converted_trees_equal_those_of_scikit_learn(seed, n, width, distinct, scale):
    rng = np.random.default_rng(seed)
    x = (scale * rng.integers(0, distinct, (n, width)) / 7).astype(np.float32)
    y = rng.normal(size=n)
    model = make_trees().fit(x, y)
    positions = rng.permutation(width + 2)[:width]
    trees = convert_trees(model, positions.tolist(), weight=1.0)
    thresholds = trees.threshold[trees.low != torch.arange(len(trees.low))].numpy()
    at = np.concatenate([x.ravel(), thresholds, np.nextafter(thresholds, np.float32(np.inf))])
    requested = rng.choice(at, (200, width)).astype(np.float32)
    wide = rng.normal(size=(200, width + 2)).astype(np.float32)
    wide[:, positions] = requested

    expected = model.predict(requested)
    np.testing.assert_allclose(trees(torch.from_numpy(wide))[:, 0], expected, atol=2e-6)
    np.testing.assert_allclose(onnx_forecasts(trees, wide), expected, atol=2e-6)


def test_a_step_in_the_data_is_a_threshold_between_its_neighbours():
    x = np.array([[1.0], [2.0], [3.0], [4.0]]).repeat(5, axis=0)
    y = np.where(x[:, 0] < 2.5, -1.0, 1.0)
    trees = fit_trees(x, y, np.ones(20), [0], weight=0.5)
    at = np.array([[2.0], [2.5], [np.nextafter(np.float32(2.5), np.float32(3))], [3.0]])

    # After 200 trees with the rate 0.07, 0.93 ** 200 is missing. Half of the rest is the weight.
    for found in (trees(torch.from_numpy(at).float())[:, 0], onnx_forecasts(trees, at)):
        np.testing.assert_allclose(found, [-0.5, -0.5, 0.5, 0.5], atol=1e-4)


def test_rows_with_a_weight_of_0_are_not_used():
    raw = rows(40, 0)
    y = np.random.default_rng(0).normal(size=40)
    hidden = np.arange(40) % 4 == 0
    y_other = np.where(hidden, np.nan, y)
    trees = [fit_trees(raw, values, 1.0 - hidden, READ, weight=0.5) for values in (y, y_other)]

    for one, other in zip(*(found.state_dict().values() for found in trees), strict=True):
        assert torch.equal(one, other)


def with_trees(name="step_time", margins=None, weight=0.3):
    """Return networks of random weights, with trees fitted to random targets."""
    raw = rows(80, 3)
    y = np.random.default_rng(3).normal(size=80)
    one = predictor(name, 2, own_margins({0.05: 0.2, 0.1: 0.1}) if margins is None else margins)
    one.trees = fit_trees(raw, y, np.ones(80), READ, weight=weight)
    return one


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_median_is_the_mean_in_log_space_and_intervals_keep_their_width(weight):
    one, x = with_trees(margins=Margins({0.05: 0.0, 0.1: 0.0}, {}), weight=weight), make_rows(50)
    prior = x[:, [columns("full").index("roofline_s")]]
    of_trees = with_trees(weight=1.0).trees(x)[:, 0]
    with torch.no_grad():
        mean = (one(x) / prior).log()
        one.trees = None
        network = (one(x) / prior).log()
    inside = (mean.abs() < 14).all(1) & (network.abs() < 14).all(1)  # not clamped
    mean, network, of_trees = mean[inside], network[inside], of_trees[inside]

    assert len(mean) > 30
    expected = (1 - weight) * network[:, MIDDLE] + weight * of_trees
    torch.testing.assert_close(mean[:, MIDDLE], expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(
        mean - mean[:, [MIDDLE]], network - network[:, [MIDDLE]], rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("name", ["step_time", "memory", "compute_utilization"])
def test_a_fused_predictor_with_trees_gives_the_same_quantiles(name):
    one, x = with_trees(name), make_rows()
    with torch.no_grad():
        found = FusedScalar(one)(x, one.trees(x))
        torch.testing.assert_close(found, one(x), rtol=1e-5, atol=0)


@pytest.fixture(scope="module")
def onnx_file():
    return session(exported(with_trees()))


@pytest.mark.parametrize("n", [0, 1, 2, 200])
def test_an_exported_predictor_with_trees_equals_torch_and_needs_features_only(onnx_file, n):
    one, x = with_trees(), make_rows(200)[:n]
    found = onnx_file.run(["quantiles"], {"features": x.numpy()})[0]

    assert [value.name for value in onnx_file.get_inputs()] == ["features"]
    np.testing.assert_allclose(found, one(x).detach().numpy(), rtol=1e-5)
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("has_trees", [(True, False), (False, True)])
def test_only_the_networks_of_one_device_class_may_have_trees(has_trees):
    gpu, processor = (with_trees() if has else predictor("step_time", 2, own_margins())
                      for has in has_trees)  # fmt: skip
    module = route_by_device_class(
        {"gpu": gpu, "processor": processor}, scale=True, column=COMPUTE_CAPABILITY
    )
    onnx_file = session(exported(module.eval()))

    for devices in ([0, 1, 3, 3, 2], [0, 1], [3]):
        x = torch.from_numpy(rows(5, 4)[: len(devices)]).float()
        x[:, INPUTS.identity] = make_rows().new_tensor(DEVICES[devices])
        found = onnx_file.run(["quantiles"], {"features": x.numpy()})[0]
        np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5)


def test_equal_rows_give_equal_bytes():
    assert len({hashlib.sha256(exported(with_trees())).hexdigest() for _ in range(2)}) == 1


def test_a_nan_in_the_inputs_gives_nan_quantiles(onnx_file):
    x = make_rows(3)
    x[1, INPUTS.columns] = torch.nan
    found = onnx_file.run(["quantiles"], {"features": x.numpy()})[0]

    assert np.isnan(found).all(1).tolist() == [False, True, False]


@pytest.mark.parametrize("weight", [-0.1, 1.5, float("nan")])
def test_a_weight_out_of_range_is_an_error(weight):
    with pytest.raises(ValueError, match="from 0 to 1"):
        FitConfig(8, 10, 0.01, 0.0, ensemble=1, seed=0, trees=weight)


def exported(module) -> bytes:
    return export(module, {"features": (make_rows(2), ("rows",))})
