"""Random effect of each measured device: its deviation beyond what the data sheet explains.

Two devices with equal data sheets differ in clocks, cooling, host and driver. The deviation of a
measured device is learned; an unmeasured device gets the mean of all. Data-sheet columns as inputs
would not do: with a handful of devices, a network would memorize them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Columns that identify a device; equal within the tolerance (of their logarithm).
IDENTITY = ("compute_capability", "memory_gb", "cores")
TOLERANCE = 0.02
# Fraction of training rows whose device is hidden, to train for unknown devices too.
HIDDEN_ROW_FRACTION = 0.3


def is_same_device(identity: Tensor, known: Tensor) -> Tensor:
    """Return whether rows (..., columns) are on ``known`` devices (devices, columns).

    The shape of the result is (..., devices).
    """
    return (identity[..., None, :] - known).abs().amax(-1) < TOLERANCE


class DeviceEffect(nn.Module):
    """Tables of one vector per known device and stack member; the effect of others is 0.

    Parameters
    ----------
    members : int
    identity : Tensor of shape (rows, 3)
        Transformed ``IDENTITY`` of every training row.
    n_out : int
        Size of a vector.
    """

    known: Tensor

    def __init__(self, members: int, identity: Tensor, n_out: int) -> None:
        super().__init__()
        self.register_buffer("known", identity.new_empty(0, identity.shape[1]))
        self.effect_weight = nn.Parameter(torch.zeros(members, 0, n_out))
        self.add_devices(identity)

    def add_devices(self, identity: Tensor) -> None:
        """Add the devices of these rows that are not known yet, with an effect of 0."""
        known = list(self.known)
        for row in torch.unique(identity, dim=0):
            if not known or not is_same_device(row, torch.stack(known)).any():
                known.append(row)
        members, n_known, n_out = self.effect_weight.shape
        new = torch.zeros(members, len(known) - n_known, n_out)
        self.known = torch.stack(known)
        self.effect_weight = nn.Parameter(torch.cat([self.effect_weight.detach(), new], 1))

    def forward(self, identity: Tensor) -> Tensor:
        """Return effects (members, rows, n_out) of identities (rows, 3)."""
        weights = is_same_device(identity, self.known).to(identity.dtype)
        if self.training:
            weights = weights * (torch.rand(len(weights), 1) > HIDDEN_ROW_FRACTION)
        return torch.matmul(weights, self.effect_weight)
