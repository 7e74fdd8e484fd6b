import pytest
import torch

from presage.models.fit import LEVELS
from presage.models.interference_mlp import InterferenceMLP
from presage.models.quantile_mlp import QuantileMLP
from presage.models.stacked import Standardizer, pinball_loss, rising


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def test_quantiles_have_their_shape_and_never_cross():
    net = QuantileMLP(3, 7, hidden=16, levels=LEVELS)
    out = net(100 * torch.randn(3, 50, 7), torch.zeros(3, 50, 17))

    assert out.shape == (3, 50, len(LEVELS))
    assert (out.diff(dim=-1) >= 0).all()


def test_members_of_a_stack_do_not_touch_one_another():
    net = QuantileMLP(2, 4, hidden=8, levels=LEVELS)
    x = torch.randn(2, 5, 4)
    effect = torch.zeros(2, 5, 9)
    before = net(x, effect)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter[1] += 1

    assert torch.equal(net(x, effect)[0], before[0])
    assert not torch.equal(net(x, effect)[1], before[1])


def test_rising_keeps_the_median():
    raw = torch.randn(10, 5)

    assert torch.equal(rising(raw, 2)[:, 2], raw[:, 2])


def test_the_pinball_loss_is_least_at_the_quantile():
    y = torch.linspace(0, 1, 1001)
    level = torch.tensor([0.9])
    losses = {q: pinball_loss(torch.full((1001, 1), q), y, level).mean() for q in (0.8, 0.9, 0.99)}

    assert min(losses, key=lambda q: losses[q]) == 0.9


def test_hidden_rows_do_not_move_a_members_scale():
    x = torch.randn(1, 10, 3).expand(2, -1, -1).clone()
    weights = torch.ones(2, 10)
    weights[1, 5:] = 0
    x[1, 5:] = 1e9
    scaled = Standardizer(x, weights)(x)

    assert scaled[1, :5].abs().max() < 4
    assert scaled.abs().max() <= Standardizer.LIMIT


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_b1_a_colocation_of_any_size_gives_every_members_slowdown(size):
    net = InterferenceMLP(2, 6, hidden=8, levels=LEVELS)
    out = net(torch.randn(2, 4, size, 6), torch.ones(4, size))

    assert out.shape == (2, 4, size, len(LEVELS))
    assert (out >= 0).all()
    assert (out.diff(dim=-1) >= 0).all()


def test_b1_permuting_the_members_permutes_the_answer():
    net = InterferenceMLP(1, 6, hidden=8, levels=LEVELS)
    members, order = torch.randn(1, 1, 4, 6), [2, 0, 3, 1]
    out = net(members, torch.ones(1, 4))

    assert torch.allclose(net(members[:, :, order], torch.ones(1, 4)), out[:, :, order], atol=1e-6)


def test_b1_padding_is_not_a_member():
    net = InterferenceMLP(1, 6, hidden=8, levels=LEVELS)
    two = torch.randn(1, 1, 2, 6)
    padded = torch.cat([two, 1e3 * torch.randn(1, 1, 3, 6)], dim=2)
    out = net(padded, torch.tensor([[1.0, 1, 0, 0, 0]]))

    assert torch.allclose(out[:, :, :2], net(two, torch.ones(1, 2)), atol=1e-6)


def test_b2_the_degradation_is_a_sigmoid_of_the_networks_output():
    raw = torch.randn(100)
    slowdown = torch.exp(torch.nn.functional.softplus(raw))

    assert torch.allclose(1 - 1 / slowdown, torch.sigmoid(raw), atol=1e-6)
