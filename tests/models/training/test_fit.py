import hashlib
import math
from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
import torch

from presage.errors import ReleaseError, TrainingError
from presage.features.colocation_member import MEMBER_COLUMNS, MEMBER_IDENTITY
from presage.features.columns.schema import columns
from presage.features.quantities.quantity import LEAST_FRACTION
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.calibration.conformal import calibrate
from presage.models.calibration.margins import Margins
from presage.models.networks.ensemble import combine_member_arrays
from presage.models.networks.predictors import (
    InterferencePredictor,
    ScalarPredictor,
    route_by_device_class,
)
from presage.models.networks.stacked import join_members, take_members
from presage.models.onnx_export.export import export
from presage.models.training import fine_tuning
from presage.models.training.fine_tuning import (
    TrainedNetworks,
    read_interference_networks,
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
from presage.models.training.fit_interference import (
    InterferenceStack,
    fit_interference,
    predict_log_slowdowns,
)

CONFIG = FitConfig(hidden=16, steps=120, learning_rate=0.02, weight_decay=0.0, ensemble=1, seed=0)
TOGETHER = replace(CONFIG, batch=40)
MARGINS = {0.05: 0.03, 0.1: 0.01}
LOG_8, LOG_80 = (math.log(8 + 1e-9), math.log(80 + 1e-9))
OWN = Margins(
    MARGINS, {"job": {0.05: 0.2, 0.1: 0.1}}, (((7.0, LOG_80, LOG_8), {0.05: 0.5, 0.1: 0.4}),)
)
COLUMNS = columns("full")
TARGET = QUANTITIES["step_time"]
INPUTS = select_inputs(TARGET.inputs, "full")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return raw features, and a step time: the roofline times a function of two columns."""
    rng = np.random.default_rng(seed)
    raw = np.exp(rng.normal(3, 1.5, size=(n, len(COLUMNS))))
    raw[:, INPUTS.identity] = 8.0  # one device
    raw[:, INPUTS.components] = rng.dirichlet(np.ones(len(INPUTS.components)), n)
    first, second = (np.log(raw[:, COLUMNS.index(name)]) for name in ("op_count", "bytes_per_op"))
    factor = 1.5 + np.tanh(first - 3) + 0.2 * second
    return raw, raw[:, COLUMNS.index("roofline_s")] * np.exp(factor)


def fit(raw, measured, weights=None, config=CONFIG, start=None):
    weights = np.ones((1, len(raw))) if weights is None else weights
    x, y = transform_features(raw, "full"), TARGET.to_learnt(measured, raw)
    return fit_scalar(x, y, weights, INPUTS, config, start=start)


def median_error(stack, raw, measured) -> float:
    quantiles = predict_quantiles(stack, transform_features(raw, "full"))[0]
    predicted = TARGET.to_measured(quantiles, raw)[:, LEVELS.index(0.5)]
    return float(np.median(np.abs(predicted / measured - 1)))


def test_a_network_overfits_32_rows():
    raw, measured = rows(32)
    config = FitConfig(64, 500, 0.02, 0.0, 1, 0)

    assert median_error(fit(raw, measured, config=config), raw, measured) < 0.02


def test_a_network_generalizes_to_unseen_rows():
    raw, measured = rows(800)
    stack = fit(raw, measured, config=FitConfig(32, 400, 0.02, 1.0, 1, 0))

    new, truth = rows(200, seed=1)
    without = np.median(np.abs(np.median(measured) / truth - 1))

    assert median_error(stack, new, truth) < without / 3


def test_a_hidden_row_has_no_influence():
    raw, measured = rows(40)
    weights = np.ones((1, 40))
    weights[0, 30:] = 0
    nonsense = measured.copy()
    nonsense[30:] *= 1e6
    models = [fit(raw, y, weights).state_dict() for y in (measured, nonsense)]

    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_measured_devices_have_an_effect_and_unknown_ones_the_mean():
    raw, measured = rows(2000)
    memory_gb = COLUMNS.index("memory_gb")
    raw[::2, memory_gb] = 80.0
    measured[::2] *= 2
    stack = fit(raw, measured, config=FitConfig(16, 600, 0.02, 1.0, 1, 0, batch=256))

    def factor(memory_gb_there):
        elsewhere = raw.copy()
        elsewhere[:, memory_gb] = memory_gb_there
        quantiles = predict_quantiles(stack, transform_features(elsewhere, "full"))[0]
        return float(np.median(quantiles[:, LEVELS.index(0.5)]))

    assert factor(80.0) - factor(8.0) == pytest.approx(np.log(2), abs=0.2)
    assert factor(8.0) < factor(24.0) < factor(80.0)


def test_more_rows_than_a_batch_are_trained_in_batches():
    raw, measured = rows(400)
    config = FitConfig(32, 600, 0.02, 1e-2, 1, 0, batch=64)

    assert median_error(fit(raw, measured, config=config), raw, measured) < 0.1


def on_another_device(n, seed, times_slower) -> tuple[np.ndarray, np.ndarray]:
    raw, measured = rows(n, seed)
    raw[:, INPUTS.identity] = 80.0
    return raw, measured * times_slower


def test_fine_tuning_on_a_few_rows_adapts_to_a_new_device():
    here, elsewhere = rows(800), on_another_device(30, 1, times_slower=1.5)
    start = fit(*here, config=FitConfig(32, 400, 0.02, 1.0, 1, 0))
    fine = replace(CONFIG, steps=300, learning_rate=3e-3, weight_decay=10.0, batch=16)
    fine_tuned = fit(*elsewhere, config=fine, start=start)
    test_rows = on_another_device(200, 2, times_slower=1.5)

    assert median_error(fine_tuned, *test_rows) < 0.9 * median_error(start, *test_rows)
    from_scratch = fit(*elsewhere, config=fine)
    assert median_error(fine_tuned, *test_rows) < 0.6 * median_error(from_scratch, *test_rows)
    assert median_error(fine_tuned, *rows(200, 3)) < 0.7 * median_error(from_scratch, *rows(200, 3))
    assert len(start.device_effect.known) == 1
    assert len(fine_tuned.device_effect.known) == 2


def test_an_infinite_pull_keeps_the_initial_parameters():
    raw, measured = rows(30)
    start = fit(raw, measured)
    pinned = replace(CONFIG, learning_rate=1e-3, weight_decay=1e3)
    fine_tuned = fit(raw, measured * 3, config=pinned, start=start)

    x = transform_features(raw, "full")
    np.testing.assert_allclose(
        predict_quantiles(fine_tuned, x), predict_quantiles(start, x), atol=0.05
    )


def test_networks_survive_a_round_trip(tmp_path, together):
    raw, measured = rows(30)
    one = TrainedNetworks(fit(raw, measured, np.ones((2, 30))), OWN)
    write_networks(one, tmp_path / "one.npz")
    write_networks(read_scalar_networks(tmp_path / "one.npz"), tmp_path / "again.npz")
    x = transform_features(raw, "full")

    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()
    again = read_scalar_networks(tmp_path / "one.npz")
    np.testing.assert_array_equal(
        predict_quantiles(again.stack, x), predict_quantiles(one.stack, x)
    )
    assert again.margins == OWN
    assert again.margins.largest == pytest.approx({0.05: 0.23, 0.1: 0.11})

    stack, _, members, mask = together
    write_networks(TrainedNetworks(stack, OWN), tmp_path / "two.npz")
    read = read_interference_networks(tmp_path / "two.npz").stack
    np.testing.assert_array_equal(
        predict_log_slowdowns(read, members[None], mask),
        predict_log_slowdowns(stack, members[None], mask),
    )


@pytest.mark.parametrize(
    "damage", ["absent", "empty", "cut", "of another schema", "of co-locations", "of another width"]
)
def test_unusable_network_files_are_a_one_line_error(tmp_path, damage, together, monkeypatch):
    path = tmp_path / "it.npz"
    if damage != "absent":
        write_networks(TrainedNetworks(fit(*rows(30)), OWN), path)
    if damage == "empty":
        path.write_bytes(b"")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    if damage == "of co-locations":
        write_networks(TrainedNetworks(together[0], OWN), path)
    if damage == "of another width":
        with np.load(path) as archive:
            arrays = dict(archive)
        np.savez(path, **(arrays | {"net.second.bias": np.zeros((1, 1, 3))}))
    if damage == "of another schema":
        monkeypatch.setattr(fine_tuning, "schema_hash", lambda _: "another")
    with pytest.raises(ReleaseError, match="make pretrained") as caught:
        read_scalar_networks(path)

    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_each_device_class_is_predicted_by_its_own_networks():
    raw, measured = rows(30)
    capability = COLUMNS.index("compute_capability")
    slow, fast = (ScalarPredictor(fit(raw, measured * times), TARGET, OWN) for times in (3.0, 1.0))
    both = route_by_device_class({"processor": slow, "gpu": fast}, scale=True, column=capability)
    on_gpu = torch.from_numpy(raw).float()
    on_processor = on_gpu.clone()
    on_processor[:, capability] = 0

    torch.testing.assert_close(both(on_gpu), fast(on_gpu))
    torch.testing.assert_close(both(on_processor), slow(on_processor))
    from_scratch = route_by_device_class({"gpu": fast}, scale=True, column=capability)
    torch.testing.assert_close(from_scratch(on_processor), fast(on_processor))


def test_a_fraction_on_an_unmeasured_class_is_the_first_principles_value():
    raw, _ = rows(3)
    raw[:, COLUMNS.index("overhead_share")] = [0.2, 0.5, 1.0]
    raw[:, COLUMNS.index("compute_capability")] = 8.0
    only = ScalarPredictor(fit(*rows(30)), QUANTITIES["compute_utilization"], OWN)
    predictor = route_by_device_class(
        {"processor": only}, scale=False, column=COLUMNS.index("compute_capability")
    )
    busy = predictor(torch.from_numpy(raw).float())

    np.testing.assert_allclose(busy[:, 0].detach().numpy(), [0.8, 0.5, LEAST_FRACTION], rtol=1e-5)
    assert (busy == busy[:, :1]).all()


def test_a_fold_without_rows_is_an_error():
    raw, measured = rows(10)
    with pytest.raises(TrainingError, match="0 training rows"):
        fit(raw, measured, np.zeros((1, 10)))


def scalar_onnx(raw, measured) -> bytes:
    stack = fit(raw, measured, np.ones((3, len(raw))))
    take_members(stack, torch.tensor([0, 2]))
    example = torch.from_numpy(raw[:2]).float()
    return export(ScalarPredictor(stack, TARGET, OWN), {"features": (example, ("rows",))})


def test_the_same_tables_and_seed_give_the_same_onnx_bytes():
    hashes = {hashlib.sha256(scalar_onnx(*rows(30))).hexdigest() for _ in range(2)}

    assert len(hashes) == 1


def test_onnx_contains_no_path_of_the_checkout():
    content = scalar_onnx(*rows(30))

    assert b"/models/" not in content
    assert b".py" not in content


def test_onnx_equals_torch_with_transform_ensemble_and_calibration():
    raw, measured = rows(30)
    stack = fit(raw, measured, np.ones((3, len(raw))))
    take_members(stack, torch.tensor([0, 2]))
    example = torch.from_numpy(raw[:2]).float()
    content = export(ScalarPredictor(stack, TARGET, OWN), {"features": (example, ("rows",))})
    found = ort.InferenceSession(content).run(None, {"features": raw.astype(np.float32)})[0]
    quantiles = combine_member_arrays(predict_quantiles(stack, transform_features(raw, "full")))

    expected = TARGET.to_measured(calibrate(quantiles, MARGINS, LEVELS), raw)
    np.testing.assert_allclose(found, expected, rtol=2e-4)


def test_device_margins_are_exported():
    raw, measured = rows(30)
    raw[::2, COLUMNS.index("compute_capability")] = 7.0
    raw[::2, COLUMNS.index("memory_gb")] = 80.0
    stack = fit(raw, measured)
    x = torch.from_numpy(raw).float()
    own, default = (
        ScalarPredictor(stack, TARGET, margins)(x).log().detach().numpy()
        for margins in (OWN, Margins(MARGINS, {}))
    )

    np.testing.assert_allclose(own[1::2], default[1::2])
    further = np.array([-0.47, -0.39, 0.0, 0.39, 0.47])
    np.testing.assert_allclose(own[::2] - default[::2], np.tile(further, (15, 1)), atol=1e-4)


def test_device_margins_apply_to_co_located_members():
    rng = np.random.default_rng(0)
    members = rng.normal(2, 1, size=(20, 2, len(MEMBER_COLUMNS)))
    members[:, 1, MEMBER_IDENTITY] = [7.0, LOG_80]
    mask = np.ones((20, 2))
    stack = fit_interference(members[None], mask, 0.5 * mask, mask[None], TOGETHER)
    known = Margins(MARGINS, {}, (((7.0, LOG_80), {0.05: 0.5, 0.1: 0.4}),))
    inputs = [torch.from_numpy(rows).float() for rows in (members, mask)]
    own, default = (
        InterferencePredictor(stack, margins)(*inputs).log().detach().numpy()
        for margins in (known, Margins(MARGINS, {}))
    )

    np.testing.assert_array_equal(own[:, 0], default[:, 0])
    np.testing.assert_allclose((own - default)[:, 1, 3:], [[0.39, 0.47]] * 20, atol=1e-4)


@pytest.fixture(scope="module")
def together():
    """Two networks trained on co-locations of two and three members, as torch and as ONNX."""
    rng = np.random.default_rng(0)
    members = rng.normal(2, 1, size=(40, 3, 6))
    mask = np.ones((40, 3))
    mask[:20, 2] = 0
    log_slowdown = 0.3 * mask.sum(axis=1, keepdims=True) * mask
    stack = fit_interference(members[None], mask, log_slowdown, np.stack([mask] * 2), TOGETHER)
    leading = ("colocations", "members")
    content = export(
        InterferencePredictor(stack, Margins(MARGINS, {})),
        {
            "members": (torch.from_numpy(members[:2]).float(), leading),
            "mask": (torch.from_numpy(mask[:2]).float(), leading),
        },
    )
    session = ort.InferenceSession(content)

    def slowdowns(members, mask=None):
        mask = np.ones(members.shape[:2]) if mask is None else mask
        inputs = {"members": members.astype(np.float32), "mask": mask.astype(np.float32)}
        return session.run(None, inputs)[0]

    return stack, slowdowns, members, mask


def test_the_interference_onnx_takes_any_size_is_equivariant_and_1_for_solo_jobs(together):
    _, slowdowns, members, _ = together
    five = np.random.default_rng(1).normal(2, 1, size=(1, 5, members.shape[-1]))

    assert slowdowns(five).shape == (1, 5, len(LEVELS))
    assert (slowdowns(five) >= 1).all()
    assert (np.diff(slowdowns(five), axis=-1) >= 0).all()
    np.testing.assert_allclose(slowdowns(five[:, ::-1]), slowdowns(five)[:, ::-1], rtol=1e-4)
    np.testing.assert_array_equal(slowdowns(five[:, :1]), 1.0)
    predicted = slowdowns(members[20:])[..., LEVELS.index(0.5)]
    np.testing.assert_allclose(predicted, np.exp(0.9), rtol=0.15)


def test_the_interference_onnx_equals_torch(together):
    stack, slowdowns, members, mask = together
    raw = combine_member_arrays(predict_log_slowdowns(stack, members[None], mask))
    calibrated = calibrate(raw.reshape(-1, len(LEVELS)), MARGINS, LEVELS).reshape(raw.shape)

    expected = np.exp(np.maximum(calibrated, 0))
    np.testing.assert_allclose(slowdowns(members, mask)[mask > 0], expected[mask > 0], rtol=2e-4)


def test_a_hidden_colocation_has_no_influence():
    rng = np.random.default_rng(2)
    x, mask, y = rng.normal(size=(30, 2, 4)), np.ones((30, 2)), rng.uniform(0, 1, size=(30, 2))
    weights = np.stack([mask] * 2)
    weights[1, 20:] = 0
    nonsense = y.copy()
    nonsense[20:] += 50
    models = [fit_interference(x[None], mask, one, weights, TOGETHER) for one in (y, nonsense)]
    found = [predict_log_slowdowns(model, x[None], mask) for model in models]

    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert (found[0][0] != found[1][0]).any()


STEADY = replace(CONFIG, steps=12, batch=32)
JITTERED = replace(STEADY, jitter=0.3)


def test_a_part_has_as_many_members_and_the_same_ones_again():
    rng = np.random.default_rng(0)
    x = transform_features(rng.uniform(1, 100, (90, len(COLUMNS))), "full")
    y, weights = rng.normal(size=90), (rng.random((7, 90)) > 0.2).astype(float)
    stacks = [
        fit_scalar(x, y, weights, INPUTS, JITTERED, part=part)
        for part in (slice(0, 3), slice(3, 7), slice(3, 7))
    ]
    found = [predict_quantiles(stack, x) for stack in stacks]

    joined = predict_quantiles(join_members(stacks), x)
    np.testing.assert_allclose(joined, np.concatenate(found), rtol=1e-5)
    np.testing.assert_array_equal(found[1], found[2])


def test_networks_that_read_variants_are_trained_as_if_each_had_its_own_rows():
    rng = np.random.default_rng(0)
    members, mask = rng.normal(2, 1, size=(2, 50, 3, 6)), np.ones((50, 3))
    weights, y = np.ones((4, 50, 3)), rng.normal(size=(50, 3))
    reads = np.array([0, 1, 1, 0])
    shared = fit_interference(members, mask, y, weights, JITTERED, of_network=reads)
    own = fit_interference(members[reads], mask, y, weights, JITTERED, of_network=np.arange(4))

    states = shared.state_dict(), own.state_dict()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_jitter_of_interference_networks_is_random_noise(monkeypatch):
    rng = np.random.default_rng(0)
    members, mask = rng.normal(2, 1, size=(1, 50, 3, 6)), np.ones((50, 3))
    noises = []
    forward = InterferenceStack.forward

    def recorded(self, members, count, noise=None):
        noises.append(noise)
        return forward(self, members, count, noise)

    monkeypatch.setattr(InterferenceStack, "forward", recorded)
    fit_interference(members, mask, rng.normal(size=(50, 3)), np.ones((4, 50, 3)), JITTERED)

    drawn = torch.stack([one for one in noises if one is not None])
    assert drawn.shape == (JITTERED.steps, 4, 32 * 3, 6)
    assert abs(float(drawn.mean())) < 0.01
    assert float(drawn.std()) == pytest.approx(JITTERED.jitter, rel=0.05)
