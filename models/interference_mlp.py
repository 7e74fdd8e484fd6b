"""The interference network: a co-location of any size in, every member's slowdown out.

Each member has a demand of the device, and each co-runner one that the victim feels. Demands add
up, and while their sum is less than what the device has nobody waits: a slowdown is the soft
maximum of the sum with one, over that of the member's own demand. Trained on two members, the law
says what a third and a fourth will do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.models.stacked import StackedLinear

# Of a log demand: e^-9 of a device is no demand any more, and e^5 devices are no forecast.
LEAST, MOST = -9.0, 5.0


class InterferenceMLP(nn.Module):
    """``stack`` networks from members and how many there are of each to log slowdowns.

    Sums know no order, so permuting the members permutes the answer. A demand is above zero, so a
    further co-runner never speeds anybody up; and without one the slowdown is exactly 1.
    """

    def __init__(self, stack: int, n_in: int, *, hidden: int, levels: tuple[float, ...]) -> None:
        super().__init__()
        self.middle = levels.index(0.5)
        self.member = StackedLinear(stack, n_in, hidden)
        self.as_victim = StackedLinear(stack, hidden, hidden)
        self.as_runner = StackedLinear(stack, hidden, hidden)
        self.pair = StackedLinear(stack, hidden, hidden)
        self.own = StackedLinear(stack, hidden, 1)
        self.felt = StackedLinear(stack, hidden, 1)
        # Straight lines beside them: the hidden layers, which see few rows, need only bend these.
        self.own_line = StackedLinear(stack, n_in, 1)
        self.victim_line = StackedLinear(stack, n_in, 1)
        self.runner_line = StackedLinear(stack, n_in, 1)
        self.sharpness = StackedLinear(stack, hidden, 1)
        self.spread = StackedLinear(stack, hidden, len(levels))
        with torch.no_grad():
            for line in (self.own_line, self.victim_line, self.runner_line):
                line.weight.mul_(0.1)
            self.own.bias.fill_(-0.5)
            self.felt.bias.fill_(0.0)
            self.sharpness.bias.fill_(1.0)
            self.spread.bias.fill_(-2.0)

    def forward(self, members: Tensor, count: Tensor) -> Tensor:
        """(stack, C, K, G) and (C, K) -> log-slowdown quantiles (stack, C, K, levels).

        ``count`` is how many equal members there are of each: 1, or 0 for padding, or more.
        """
        stack, places, size, n_in = members.shape

        def by_member(x: Tensor) -> Tensor:
            return x.reshape(stack, places, size, -1)

        flat = members.reshape(stack, places * size, n_in)
        seen = F.silu(self.member(flat))  # (M, C * K, H)
        own = by_member(self.own(seen) + self.own_line(flat))[..., 0]  # (M, C, K)
        sharpness = 1 + F.softplus(by_member(self.sharpness(seen))[..., 0])
        victims = by_member(self.as_victim(seen))[:, :, :, None]
        runners = by_member(self.as_runner(seen))[:, :, None]
        pairs = F.silu(victims + runners)  # (M, C, K, K, H), victims first
        pairs = F.silu(self.pair(pairs.reshape(stack, places * size * size, -1)))
        felt = self.felt(pairs).reshape(stack, places, size, size)
        felt = own[:, :, None] + felt + by_member(self.victim_line(flat)) + self._by_runner(flat, members)
        beside = _beside(count)  # (C, K, K)
        demand = beside * felt.clamp(LEAST, MOST).exp()  # (M, C, K, K)
        alone = own.clamp(LEAST, MOST).exp()
        median = (
            _queueing(alone + demand.sum(-1), sharpness) - _queueing(alone, sharpness)
        ) / sharpness
        weight = demand / (alone[..., None] + demand.sum(-1, keepdim=True))
        met = (pairs.reshape(*felt.shape, -1) * weight[..., None]).sum(3)  # (M, C, K, H)
        steps = F.softplus(self.spread(met.reshape(stack, places * size, -1)))
        crowded = (beside.sum(-1) > 0).to(median.dtype)[None, :, :, None]
        return _outward(median.relu(), by_member(steps) * crowded, self.middle)

    def _by_runner(self, flat: Tensor, members: Tensor) -> Tensor:
        stack, places, size, _ = members.shape
        return self.runner_line(flat).reshape(stack, places, 1, size)


def _beside(count: Tensor) -> Tensor:
    """How many co-runners of each kind each member has, (C, K) -> (C, K, K)."""
    itself = torch.eye(count.shape[-1], dtype=count.dtype, device=count.device)
    there = (count > 0).to(count.dtype)
    return ((count[:, None, :] - itself) * there[:, :, None]).clamp_min(0)


def _queueing(demand: Tensor, sharpness: Tensor) -> Tensor:
    """Logarithm of 1 + demand^sharpness."""
    return F.softplus(sharpness * demand.log())


def _outward(median: Tensor, steps: Tensor, middle: int) -> Tensor:
    """Quantiles (..., Q) by steps away from the median, whose own fit they may not bend.

    Upwards steps add; downwards they shrink the median, which is never below 0, towards it.
    """
    held = median.detach()[..., None]
    down = torch.flip(torch.cumsum(torch.flip(steps[..., :middle], [-1]), -1), [-1])
    up = torch.cumsum(steps[..., middle + 1 :], -1)
    return torch.cat([held * torch.exp(-down), median[..., None], held + up], dim=-1)
