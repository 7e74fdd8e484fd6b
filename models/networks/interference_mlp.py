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

from presage.models.networks.stacked import StackedLinear

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
            # Sharp until data says otherwise: two members whose demands fit teach nothing of five.
            self.sharpness.bias.fill_(5.0)
            self.spread.bias.fill_(-2.0)

    def forward(self, members: Tensor, count: Tensor) -> Tensor:
        """(stack, C, K, G) and (C, K) -> log-slowdown quantiles (stack, C, K, levels).

        ``count`` is how many equal members there are of each: 1, or 0 for padding, or more.
        """
        stack, places, size, n_in = members.shape
        flat = members.reshape(stack, places * size, n_in)
        seen = F.silu(self.member(flat))  # (M, C * K, H)
        own = (self.own(seen) + self.own_line(flat)).reshape(stack, places, size)
        sharpness = 1 + F.softplus(self.sharpness(seen)).reshape(stack, places, size)
        pairs = self._pairs(seen, places, size)  # (M, C * K * K, H)
        # A victim feels a co-runner's own demand, but for what is peculiar to the two.
        felt = self.felt(pairs).reshape(stack, places, size, size) + own[:, :, None]
        felt = felt + self.victim_line(flat).reshape(stack, places, size, 1)
        felt = felt + self.runner_line(flat).reshape(stack, places, 1, size)
        beside = _beside(count)  # (C, K, K)
        demand = beside * felt.clamp(LEAST, MOST).exp()  # (M, C, K, K)
        alone = own.clamp(LEAST, MOST).exp()
        total = alone + demand.sum(-1)
        waiting = _log_one_plus_power(total, sharpness) - _log_one_plus_power(alone, sharpness)
        steps = self._steps(pairs, (demand / total[..., None]).detach())
        crowded = (beside.sum(-1) > 0).to(steps.dtype)[..., None]
        return _outward(waiting.relu() / sharpness, steps * crowded, self.middle)

    def _pairs(self, seen: Tensor, places: int, size: int) -> Tensor:
        """Every member as the victim of every other, (M, C * K * K, H)."""
        stack, _, hidden = seen.shape
        victims = self.as_victim(seen).reshape(stack, places, size, 1, hidden)
        runners = self.as_runner(seen).reshape(stack, places, 1, size, hidden)
        met = F.silu(victims + runners).reshape(stack, places * size * size, hidden)
        pairs: Tensor = F.silu(self.pair(met))
        return pairs

    def _steps(self, pairs: Tensor, weight: Tensor) -> Tensor:
        """From quantile to quantile, by the co-runners in proportion to their demand."""
        stack, places, size, _ = weight.shape
        met = (pairs.reshape(*weight.shape, -1) * weight[..., None]).sum(3)  # (M, C, K, H)
        steps = F.softplus(self.spread(met.reshape(stack, places * size, -1)))
        return steps.reshape(stack, places, size, -1)


def _beside(count: Tensor) -> Tensor:
    """How many co-runners of each kind each member has, (C, K) -> (C, K, K)."""
    itself = torch.eye(count.shape[-1], dtype=count.dtype, device=count.device)
    there = (count > 0).to(count.dtype)
    return ((count[:, None, :] - itself) * there[:, :, None]).clamp_min(0)


def _log_one_plus_power(demand: Tensor, sharpness: Tensor) -> Tensor:
    """Logarithm of 1 + demand ** sharpness: about 0 below one, sharpness x log demand above."""
    return F.softplus(sharpness * demand.log())


def _outward(median: Tensor, steps: Tensor, middle: int) -> Tensor:
    """Quantiles (..., Q) by steps away from the median, whose own fit they may not bend.

    Upwards they add; downwards they shrink it towards 0, so that no quantile is below.
    """
    held = median.detach()[..., None]
    down = torch.flip(torch.cumsum(torch.flip(steps[..., :middle], [-1]), -1), [-1])
    up = torch.cumsum(steps[..., middle + 1 :], -1)
    return torch.cat([held * torch.exp(-down), median[..., None], held + up], dim=-1)
