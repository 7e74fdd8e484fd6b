"""Fused graphs equal the trained modules, have few operators, and skip unused networks."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

from presage.features.colocation_member import MEMBER_COLUMNS, MEMBER_IDENTITY
from presage.features.columns.schema import columns
from presage.features.device.device_class import COMPUTE_CAPABILITY
from presage.features.quantities.quantity_registry import QUANTITIES, solo_quantities
from presage.models.calibration.margins import Margins
from presage.models.networks.component_factors import CONDITIONS
from presage.models.networks.predictors import (
    InterferencePredictor,
    MeasuredDeviceRouter,
    ScalarPredictor,
    route_by_device_class,
)
from presage.models.onnx_export.export import export
from presage.models.onnx_export.fused_interference import FusedInterference
from presage.models.onnx_export.fused_solo import FusedScalar
from presage.models.training.fit import (
    CHANNELS_LAST,
    LEVELS,
    FitConfig,
    ScalarStack,
    select_inputs,
    transform_features,
)
from presage.models.training.fit_interference import InterferenceStack

CONFIG = FitConfig(hidden=8, steps=0, learning_rate=0, weight_decay=0, ensemble=0, seed=0)
COLUMNS = columns("full")
IDENTITY = list(select_inputs((), "full").identity)
DEVICES = np.array([[8.0, 80.0, 6912], [8.0, 80.4, 6912], [7.5, 11.0, 4352], [0.0, 4.0, 2]])
STRANGER = [9.0, 24.0, 16384]
NARROW, CROSSING, WIDE = {0.05: 0.03, 0.1: 0.01}, {0.05: -0.4, 0.1: 0.2}, {0.05: -2.0, 0.1: -3.0}


def rows(n: int, seed: int, devices=DEVICES) -> np.ndarray:
    """Return raw features: sizes over many decades, mostly zero shares, and flags."""
    rng = np.random.default_rng(seed)
    raw = np.exp(rng.normal(8, 4, size=(n, len(COLUMNS))))
    shares = select_inputs(QUANTITIES["step_time"].inputs, "full").components
    raw[:, shares] = rng.dirichlet(np.full(len(shares), 0.1), n) * rng.uniform(0.5, 1.2, (n, 1))
    raw[:, [CHANNELS_LAST, *CONDITIONS]] = rng.integers(0, 2, (n, 1 + len(CONDITIONS)))
    raw[:, IDENTITY] = devices[rng.integers(0, len(devices), n)]
    return raw


def predictor(name: str, members: int, margins: Margins, seed: int = 0, *, alike=True):
    """Return networks of random weights, with equal or different training rows."""
    torch.manual_seed(seed)
    x = torch.from_numpy(transform_features(rows(60, seed), "full")).float()
    weights = torch.ones(members, 60) if alike else torch.rand(members, 60)
    target = QUANTITIES[name]
    stack = ScalarStack(
        x, torch.randn(members, 60), weights, select_inputs(target.inputs, "full"), CONFIG
    )
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return ScalarPredictor(stack.eval(), target, margins).eval()


def own_margins(*margins) -> Margins:
    """Return margins of the first devices."""
    raw = np.ones((len(margins), len(COLUMNS)))
    raw[:, IDENTITY] = DEVICES[: len(margins)]
    known = transform_features(raw, "full")[:, IDENTITY].tolist()
    own = tuple((tuple(identity), margin) for identity, margin in zip(known, margins, strict=True))
    return Margins(NARROW, {}, own)


def make_rows(n: int = 200) -> torch.Tensor:
    raw = rows(n, 1, np.array([*DEVICES, STRANGER]))
    raw[:5, select_inputs(QUANTITIES["step_time"].inputs, "full").components] = 0
    return torch.from_numpy(raw).float()


@torch.no_grad()
def assert_same(one, other, x) -> None:
    torch.testing.assert_close(other(x), one(x), rtol=1e-5, atol=0)


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("name", solo_quantities())
def test_a_fused_predictor_gives_the_same_quantiles(name, members):
    one = predictor(name, members, own_margins(WIDE, CROSSING))
    assert_same(one, FusedScalar(one), make_rows())


def test_members_with_different_standardizers_are_fused():
    one = predictor("step_time", 3, own_margins(), alike=False)
    assert_same(one, FusedScalar(one), make_rows())


@pytest.mark.parametrize("margin", [NARROW, CROSSING, WIDE])
def test_fused_quantiles_stay_ordered_with_any_margin(margin):
    one = predictor("memory", 2, Margins(margin, {}))
    fused = FusedScalar(one)(make_rows()).detach()

    assert (fused.diff(dim=1) >= 0).all()
    assert_same(one, FusedScalar(one), make_rows())


def test_a_row_that_matches_two_devices_gets_the_mean_of_their_margins():
    one = predictor("step_time", 2, own_margins(NARROW, {0.05: 1.0, 0.1: 0.5}, WIDE))
    of_first = rows(20, 2, DEVICES[:1])
    between = of_first.copy()
    between[:, IDENTITY] = (DEVICES[0] + DEVICES[1]) / 2

    for raw in (of_first, between):
        assert_same(one, FusedScalar(one), torch.from_numpy(raw).float())


def test_nan_features_give_nan_quantiles():
    one = predictor("step_time", 2, own_margins())
    x = make_rows(3)
    x[1, select_inputs(QUANTITIES["step_time"].inputs, "full").columns] = torch.nan

    assert FusedScalar(one)(x).isnan().all(1).tolist() == [False, True, False]


def session(content: bytes, tmp_path=None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    if tmp_path is not None:
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def exported(module) -> bytes:
    return export(module, {"features": (make_rows(2), ("rows",))})


def test_an_exported_predictor_has_few_operators(tmp_path):
    session(exported(predictor("step_time", 3, own_margins(WIDE))), tmp_path)

    assert len(onnx.load(tmp_path / "optimized.onnx").graph.node) <= 42


@pytest.fixture(scope="module")
def routed():
    """Two networks for GPUs and first principles for processors, as torch and as ONNX."""
    gpu, here = (predictor("compute_utilization", 2, own_margins(WIDE), seed) for seed in (1, 2))
    known = transform_features(rows(3, 0, DEVICES[:1]), "full")[:, IDENTITY]
    of_gpu = MeasuredDeviceRouter(here, gpu, known, IDENTITY, raw=True)
    module = route_by_device_class({"gpu": of_gpu}, scale=False, column=COMPUTE_CAPABILITY)
    return module.eval(), session(exported(module))


@pytest.mark.parametrize(
    "devices", [[0], [2], [3], [0, 2], [0, 3], [2, 3], [3, 0, 2, 0, 3], []], ids=str
)
def test_each_row_is_routed_to_the_networks_of_its_device(routed, devices):
    module, onnx_file = routed
    raw = rows(len(devices), 4)
    raw[:, IDENTITY] = DEVICES[devices] if devices else np.empty((0, 3))
    x = torch.from_numpy(raw).float()
    found = onnx_file.run(["quantiles"], {"features": x.numpy()})[0]

    assert found.shape == (len(devices), len(LEVELS))
    # ONNX Runtime's own sigmoid is exact to 1e-7.
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=1e-7)


def test_a_row_with_a_nan_class_is_routed_as_in_torch(routed):
    module, onnx_file = routed
    x = torch.from_numpy(rows(3, 4, DEVICES[:1])).float()
    x[1, COMPUTE_CAPABILITY] = torch.nan
    for some in (x, x[1:2]):
        found = onnx_file.run(["quantiles"], {"features": some.numpy()})[0]
        np.testing.assert_allclose(found, module(some).detach().numpy(), rtol=1e-5, atol=1e-7)


def together(members: int, margins: Margins, *, alike=True) -> InterferencePredictor:
    """Return an interference predictor of random weights."""
    torch.manual_seed(members)
    x = torch.randn(members, 40, 3, len(MEMBER_COLUMNS)).mul(2)
    x = x[:1].expand(members, -1, -1, -1) if alike else x
    stack = InterferenceStack(x, torch.ones(members, 40, 3), CONFIG)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return InterferencePredictor(stack, margins).eval()


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "each its own rows"])
@pytest.mark.parametrize("members", [1, 3])
def test_a_fused_interference_predictor_gives_the_same_slowdowns(members, alike):
    known = ((8.0, 4.4), NARROW), ((8.0, 4.41), CROSSING), ((7.0, 2.5), WIDE)
    one = together(members, Margins(CROSSING, {}, known), alike=alike)
    members = torch.randn(60, 4, len(MEMBER_COLUMNS)).mul(3)
    for start, (identity, _) in enumerate(known):
        members[start::5][..., MEMBER_IDENTITY] = torch.tensor(identity)
    mask = torch.ones(60, 4)
    mask[::3, 3], mask[::4, 1:] = 0, 0
    members = members * mask[..., None]
    with torch.no_grad():
        expected, found = one(members, mask), FusedInterference(one)(members, mask)

    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    assert (found[::4, 0] == 1).all()
    assert (found.diff(dim=-1) >= 0).all()


class Thrice(nn.Module):
    """Predictor of the slowdown 3 for every member."""

    def forward(self, members, mask):
        return 3 * torch.ones(len(LEVELS)) * mask[..., None]


def test_co_locations_are_routed_to_the_networks_of_their_device_class(tmp_path):
    capability = MEMBER_COLUMNS.index("compute capability")
    gpu = together(2, Margins(NARROW, {}, (((8.0, 4.4), WIDE),)))
    module = route_by_device_class(
        {"processor": Thrice(), "gpu": gpu}, scale=True, column=capability
    )
    leading = ("colocations", "members")
    example = torch.randn(2, 2, len(MEMBER_COLUMNS)), torch.ones(2, 2)
    content = export(
        module.eval(), {"members": (example[0], leading), "mask": (example[1], leading)}
    )
    onnx_file = session(content, tmp_path)

    for capabilities in ([8.0, 0.0, 7.0], [8.0], [0.0, 0.0], []):
        members = torch.randn(len(capabilities), 3, len(MEMBER_COLUMNS))
        members[..., capability] = torch.tensor(capabilities)[:, None]
        mask = torch.ones(len(capabilities), 3)
        mask[::2, 2] = 0
        members = members * mask[..., None]
        inputs = {"members": members.numpy(), "mask": mask.numpy()}
        found = onnx_file.run(["quantiles"], inputs)[0]
        with torch.no_grad():
            expected = [module(members[i : i + 1], mask[i : i + 1]) for i in range(len(members))]
        expected_rows = np.concatenate([np.empty((0, 3, len(LEVELS))), *expected])
        np.testing.assert_allclose(found, expected_rows, rtol=1e-5)
    branch = onnx.load(tmp_path / "optimized.onnx").graph.node[-1].attribute[0].g
    assert len(branch.node) <= 90
