"""Interference network: slowdowns of all members of a co-location of any size.

Each member has a demand on the device, and each co-runner adds a demand that the member feels. As
long as the sum of demands is below the capacity of the device, no member waits. The slowdown is the
soft maximum of the sum and one, divided by that of the member's own demand. Trained on pairs, this
law extrapolates to three and more members.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.models.networks.stacked import StackedLinear

# Bounds of a log demand: e^-9 of a device is negligible, and e^5 devices are no useful forecast.
MIN_LOG_DEMAND, MAX_LOG_DEMAND = -9.0, 5.0


class InterferenceMLP(nn.Module):
    """``stack`` networks that map members and their counts to log slowdowns.

    Demands are summed, so a permutation of the members permutes the slowdowns. A demand is
    positive, so a further co-runner never speeds up a member. The slowdown of a member without
    co-runners is exactly 1. The names of layers are keys of the networks' files.
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
        # Parallel linear paths: the hidden layers, which see few rows, only fit deviations.
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
            # Sharp initially: two members whose demands fit carry no information about five.
            self.sharpness.bias.fill_(5.0)
            self.spread.bias.fill_(-2.0)

    def forward(self, members: Tensor, count: Tensor) -> Tensor:
        """Return log-slowdown quantiles (stack, C, K, levels).

        Parameters
        ----------
        members : Tensor of shape (stack, C, K, G)
            C co-locations of at most K members with G columns each.
        count : Tensor of shape (C, K)
            Number of identical members at each place: 1, more, or 0 for padding.
        """
        stack, places, size, n_in = members.shape
        flat = members.reshape(stack, places * size, n_in)
        hidden = F.silu(self.member(flat))  # (M, C * K, H)
        own = (self.own(hidden) + self.own_line(flat)).reshape(stack, places, size)
        sharpness = 1 + F.softplus(self.sharpness(hidden)).reshape(stack, places, size)
        pairs = self._pairs(hidden, places, size)  # (M, C * K * K, H)
        felt = self._felt(pairs, own, flat)
        co_runners = _count_co_runners(count)  # (C, K, K)
        demand = co_runners * felt.clamp(MIN_LOG_DEMAND, MAX_LOG_DEMAND).exp()  # (M, C, K, K)
        solo = own.clamp(MIN_LOG_DEMAND, MAX_LOG_DEMAND).exp()
        total = solo + demand.sum(-1)
        waiting = _log_one_plus_power(total, sharpness) - _log_one_plus_power(solo, sharpness)
        steps = self._steps(pairs, (demand / total[..., None]).detach())
        is_shared = (co_runners.sum(-1) > 0).to(steps.dtype)[..., None]
        return _quantiles_from_steps(waiting.relu() / sharpness, steps * is_shared, self.middle)

    def _felt(self, pairs: Tensor, own: Tensor, flat: Tensor) -> Tensor:
        """Return log demands (M, C, K, K) that each member feels from each other one.

        It is the co-runner's own demand, corrected for the pair.
        """
        stack, places, size = own.shape
        felt = self.felt(pairs).reshape(stack, places, size, size) + own[:, :, None]
        felt = felt + self.victim_line(flat).reshape(stack, places, size, 1)
        out: Tensor = felt + self.runner_line(flat).reshape(stack, places, 1, size)
        return out

    def _pairs(self, hidden: Tensor, places: int, size: int) -> Tensor:
        """Return features of every (victim, co-runner) pair, (M, C * K * K, H)."""
        stack, _, width = hidden.shape
        victims = self.as_victim(hidden).reshape(stack, places, size, 1, width)
        runners = self.as_runner(hidden).reshape(stack, places, 1, size, width)
        both = F.silu(victims + runners).reshape(stack, places * size * size, width)
        pairs: Tensor = F.silu(self.pair(both))
        return pairs

    def _steps(self, pairs: Tensor, weight: Tensor) -> Tensor:
        """Return steps between quantiles, from co-runners weighted by their demand."""
        stack, places, size, _ = weight.shape
        mean = (pairs.reshape(*weight.shape, -1) * weight[..., None]).sum(3)  # (M, C, K, H)
        steps = F.softplus(self.spread(mean.reshape(stack, places * size, -1)))
        return steps.reshape(stack, places, size, -1)


def _count_co_runners(count: Tensor) -> Tensor:
    """Return the number of co-runners of each kind of each member, (C, K) -> (C, K, K)."""
    itself = torch.eye(count.shape[-1], dtype=count.dtype, device=count.device)
    is_present = (count > 0).to(count.dtype)
    return ((count[:, None, :] - itself) * is_present[:, :, None]).clamp_min(0)


def _log_one_plus_power(demand: Tensor, sharpness: Tensor) -> Tensor:
    """Return log(1 + demand ** sharpness): about 0 below one, sharpness x log demand above."""
    return F.softplus(sharpness * demand.log())


def _quantiles_from_steps(median: Tensor, steps: Tensor, middle: int) -> Tensor:
    """Return quantiles (..., Q) by steps from the median, without gradients into its fit.

    Steps above the median are added. Steps below shrink it towards 0, so no quantile is negative.
    """
    constant = median.detach()[..., None]
    down = torch.flip(torch.cumsum(torch.flip(steps[..., :middle], [-1]), -1), [-1])
    up = torch.cumsum(steps[..., middle + 1 :], -1)
    return torch.cat([constant * torch.exp(-down), median[..., None], constant + up], dim=-1)
