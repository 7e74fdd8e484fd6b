import math
from copy import deepcopy
from itertools import pairwise

import pytest
import torch

from presage.models.networks.interference_mlp import InterferenceMLP
from presage.models.networks.quantile_mlp import QuantileMLP
from presage.models.networks.stacked import (
    Standardizer,
    join_members,
    ordered_quantiles,
    pinball_loss,
    take_members,
)
from presage.models.training.fit import LEVELS, minimize, sum_of_member_means


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def test_quantiles_have_the_right_shape_and_never_cross():
    net = QuantileMLP(3, 7, hidden=16, levels=LEVELS)
    out = net(100 * torch.randn(3, 50, 7), torch.zeros(3, 50, 17))

    assert out.shape == (3, 50, len(LEVELS))
    assert (out.diff(dim=-1) >= 0).all()


def test_members_of_a_stack_are_independent():
    net = QuantileMLP(2, 4, hidden=8, levels=LEVELS)
    x = torch.randn(2, 5, 4)
    effect = torch.zeros(2, 5, 9)
    before = net(x, effect)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter[1] += 1

    assert torch.equal(net(x, effect)[0], before[0])
    assert not torch.equal(net(x, effect)[1], before[1])


def test_ordered_quantiles_keep_the_median():
    raw = torch.randn(10, 5)

    assert torch.equal(ordered_quantiles(raw, 2)[:, 2], raw[:, 2])


def test_the_pinball_loss_is_smallest_at_the_quantile():
    y = torch.linspace(0, 1, 1001)
    level = torch.tensor([0.9])
    losses = {q: pinball_loss(torch.full((1001, 1), q), y, level).mean() for q in (0.8, 0.9, 0.99)}

    assert min(losses, key=lambda q: losses[q]) == 0.9


def test_hidden_rows_do_not_affect_a_members_scale():
    x = torch.randn(1, 10, 3).expand(2, -1, -1).clone()
    weights = torch.ones(2, 10)
    weights[1, 5:] = 0
    x[1, 5:] = 1e9
    scaled = Standardizer(x, weights)(x)

    assert scaled[1, :5].abs().max() < 4
    assert scaled.abs().max() <= Standardizer.LIMIT


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_interference_predicts_every_member_of_any_colocation_size(size):
    net = InterferenceMLP(2, 6, hidden=8, levels=LEVELS)
    out = net(torch.randn(2, 4, size, 6), torch.ones(4, size))

    assert out.shape == (2, 4, size, len(LEVELS))
    assert (out >= 0).all()
    assert (out.diff(dim=-1) >= 0).all()


def test_interference_is_permutation_equivariant():
    net = InterferenceMLP(1, 6, hidden=8, levels=LEVELS)
    members, order = torch.randn(1, 1, 4, 6), [2, 0, 3, 1]
    out = net(members, torch.ones(1, 4))

    assert torch.allclose(net(members[:, :, order], torch.ones(1, 4)), out[:, :, order], atol=1e-6)


def test_interference_ignores_padding():
    net = InterferenceMLP(1, 6, hidden=8, levels=LEVELS)
    two = torch.randn(1, 1, 2, 6)
    padded = torch.cat([two, 1e3 * torch.randn(1, 1, 3, 6)], dim=2)
    out = net(padded, torch.tensor([[1.0, 1, 0, 0, 0]]))

    assert torch.allclose(out[:, :, :2], net(two, torch.ones(1, 2)), atol=1e-6)


def test_the_slowdown_of_a_solo_job_is_exactly_1():
    net = InterferenceMLP(2, 6, hidden=8, levels=LEVELS)

    assert (net(torch.randn(2, 9, 1, 6), torch.ones(9, 1)) == 0).all()


def test_a_further_corunner_never_decreases_a_slowdown():
    net = InterferenceMLP(3, 6, hidden=8, levels=LEVELS)
    members = 2 * torch.randn(3, 50, 5, 6)
    medians = [
        net(members[:, :, :size], torch.ones(50, size))[:, :, :2, LEVELS.index(0.5)]
        for size in range(2, 6)
    ]

    assert all((more >= fewer - 1e-6).all() for fewer, more in pairwise(medians))
    assert (medians[-1] > medians[0]).any()


def test_identical_members_can_be_counted_or_repeated():
    net = InterferenceMLP(1, 6, hidden=8, levels=LEVELS)
    first, second = torch.randn(1, 1, 1, 6), torch.randn(1, 1, 1, 6)
    repeated = net(torch.cat([first, first, first, second], dim=2), torch.ones(1, 4))
    counted = net(torch.cat([first, second], dim=2), torch.tensor([[3.0, 1.0]]))

    assert torch.allclose(counted, repeated[:, :, 2:], atol=1e-5)


def test_slowdown_starts_where_demand_exceeds_capacity_and_is_then_proportional():
    net = InterferenceMLP(1, 1, hidden=4, levels=LEVELS)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.sharpness.bias.fill_(50.0)
        net.own.bias.fill_(math.log(0.3))  # of the device, and as much is felt of a co-runner

    def median(size):
        members, count = torch.zeros(1, 1, size, 1), torch.ones(1, size)
        return float(net(members, count)[0, 0, 0, LEVELS.index(0.5)].detach().exp())

    assert [median(size) for size in (1, 2, 3, 4, 6)] == pytest.approx(
        [1, 1, 1, 1.2, 1.8], abs=0.02
    )


def test_outer_quantiles_do_not_affect_the_median():
    net = InterferenceMLP(1, 6, hidden=8, levels=LEVELS)
    out = net(torch.randn(1, 4, 2, 6), torch.ones(4, 2))
    own, spread = torch.autograd.grad(
        out[..., [0, 1, 3, 4]].sum(), [net.own.weight, net.spread.weight], materialize_grads=True
    )

    assert not own.any()
    assert spread.any()


def test_degradation_is_relative_to_solo_speed():
    net = InterferenceMLP(1, 6, hidden=8, levels=LEVELS)
    degradation = 1 - torch.exp(-net(5 * torch.randn(1, 20, 4, 6), torch.ones(20, 4)))

    assert ((degradation >= 0) & (degradation < 1)).all()


def test_the_interference_loss_is_a_weighted_mean_over_victims():
    net = InterferenceMLP(1, 6, hidden=8, levels=LEVELS)
    quantiles = net(torch.randn(1, 5, 3, 6), torch.ones(5, 3))
    losses = pinball_loss(quantiles, torch.rand(1, 5, 3), torch.tensor(LEVELS)).flatten(1)
    weights = torch.randint(1, 4, (1, 15))
    repeated = losses.repeat_interleave(weights[0], dim=1)

    assert torch.allclose(sum_of_member_means(losses, weights), repeated.mean())
    hidden = torch.cat([weights, torch.zeros(1, 1, dtype=torch.long)], dim=1)
    nonsense = torch.cat([losses, torch.tensor([[1e6]])], dim=1)
    assert torch.allclose(sum_of_member_means(nonsense, hidden), repeated.mean())


def test_weight_decay_affects_only_weights():
    members, known = torch.randn(1, 64, 2, 6), torch.rand(1, 64, 2)
    squares, errors = [], []
    for decay in (0.0, 1.0, 30.0):
        torch.manual_seed(0)
        net = InterferenceMLP(1, 6, hidden=8, levels=LEVELS)

        def loss(net=net):
            return pinball_loss(net(members, torch.ones(64, 2)), known, torch.tensor(LEVELS)).mean()

        minimize(net, loss, steps=60, learning_rate=0.02, weight_decay=decay, progress=None)
        named = [p.detach() for name, p in net.named_parameters() if name.endswith("weight")]
        squares.append(float(sum((p**2).sum() for p in named)))
        errors.append(float(loss().detach()))

    assert squares[0] > squares[1] > squares[2]
    assert squares[2] < 0.1 * squares[0]
    assert errors[0] < errors[1] < errors[2]
    biases = [p for name, p in net.named_parameters() if name.endswith("bias")]
    assert any(p.abs().max() > 0.1 for p in biases)


def test_the_parts_of_a_stack_join_to_the_stack():
    net = QuantileMLP(5, 7, hidden=8, levels=LEVELS)
    parts = [deepcopy(net) for _ in range(3)]
    for part, members in zip(parts, ([0, 1], [2], [3, 4]), strict=True):
        take_members(part, torch.tensor(members))
    joined = join_members(parts).state_dict()

    assert joined.keys() == net.state_dict().keys()
    assert all(torch.equal(joined[name], value) for name, value in net.state_dict().items())
