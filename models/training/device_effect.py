"""What a device does to forecasts beyond its data sheet: a random effect of each one measured.

Two cards of equal data sheets differ in clocks, cooling, host and driver. Where a device was
measured, its own deviation is learnt; one that was not is forecast as the mean of all. Columns
of the data sheet as inputs would do the first and spoil the second: with a handful of devices a
network learns them by heart.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# A device is known by these columns, equal within the tolerance (of their logarithm).
IDENTITY = ("compute_capability", "memory_gb", "cores")
TOLERANCE = 0.02
# Part of the training rows whose device is hidden, so that an unknown one is practised too.
HIDDEN_ROW_FRACTION = 0.3


def is_same_device(identity: Tensor, known: Tensor) -> Tensor:
    """Which of the known devices (devices, columns) each row (..., columns) is: (..., devices)."""
    return (identity[..., None, :] - known).abs().amax(-1) < TOLERANCE


class DeviceEffect(nn.Module):
    """``members`` tables of a vector per known device; zeros for any other.

    Parameters
    ----------
    identity : Tensor of shape (rows, 3)
        ``IDENTITY`` of every training row, as the networks see those columns.
    """

    known: Tensor

    def __init__(self, members: int, identity: Tensor, n_out: int) -> None:
        super().__init__()
        self.register_buffer("known", identity.new_empty(0, identity.shape[1]))
        self.effect_weight = nn.Parameter(torch.zeros(members, 0, n_out))
        self.add_devices(identity)

    def add_devices(self, identity: Tensor) -> None:
        """Know the devices of these rows too: of each a vector, 0 until it is learnt."""
        known = list(self.known)
        for row in torch.unique(identity, dim=0):
            if not known or not is_same_device(row, torch.stack(known)).any():
                known.append(row)
        members, before, n_out = self.effect_weight.shape
        new = torch.zeros(members, len(known) - before, n_out)
        self.known = torch.stack(known)
        self.effect_weight = nn.Parameter(torch.cat([self.effect_weight.detach(), new], 1))

    def forward(self, identity: Tensor) -> Tensor:
        """(rows, 3) -> (members, rows, n_out)."""
        weights = is_same_device(identity, self.known).to(identity.dtype)
        if self.training:
            weights = weights * (torch.rand(len(weights), 1) > HIDDEN_ROW_FRACTION)
        return torch.matmul(weights, self.effect_weight)
