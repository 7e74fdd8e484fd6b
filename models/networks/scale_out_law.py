"""How long a data-parallel step takes by first principles, its few constants fitted to steps.

After Pollux (Qiao et al., OSDI 2021, section 3.2): a step computes gradients for g seconds and
synchronises them for s, and the two overlap somewhat: (g^gamma + s^gamma)^(1/gamma), from their
sum at gamma = 1 to the longer one. Pollux fits s to each job, as a line in the number of devices.
Here it follows from the bytes that a ring moves over the slowest link, 2 (n - 1) / n times the
gradients, so that a job which nobody ran on several devices has one too; a job that was seen is
off that by factors of its own, which are held small. Links within a node, between two nodes and
between more are of three kinds; the devices of a node share its link.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from presage.features.device.node_spread import Spread
from presage.system.arrays import Array

KINDS = 3  # within a node, between two nodes, between more
# To begin with: seconds that any synchronisation takes, and bytes per second of each kind.
START_S, START_BYTES_PER_S = 5e-3, (8e9, 6e8, 1e9)
STEPS, LEARNING_RATE = 600, 0.05
HELD_SMALL = 1e-3  # of a squared log factor, in log seconds
LEAST_S = 1e-9


def ring_bytes(gradient_bytes: Array, spreads: Sequence[Spread]) -> Array:
    """Bytes that each device sends in an all-reduce by a ring."""
    devices = np.array([one.devices for one in spreads], dtype=np.float64)
    return 2 * (devices - 1) / devices * gradient_bytes


class StepLaw(nn.Module):
    """The law with its constants, for every member of a stack."""

    def __init__(self, members: int, jobs: int) -> None:
        super().__init__()
        rates = torch.tensor(START_BYTES_PER_S).log()
        self.log_fixed_s = nn.Parameter(torch.full((members, KINDS), float(np.log(START_S))))
        self.log_bytes_per_s = nn.Parameter(rates.repeat(members, 1))
        # Powers of the most devices that share a link, and of the nodes.
        self.of_widest = nn.Parameter(torch.zeros(members, KINDS))
        self.of_nodes = nn.Parameter(torch.zeros(members, KINDS))
        self.overlap = nn.Parameter(torch.zeros(members, 1))
        self.of_job = nn.Parameter(torch.zeros(members, jobs, KINDS))
        self.overlap_of_job = nn.Parameter(torch.zeros(members, jobs))

    def forward(self, compute_s: Tensor, ring: Tensor, links: Tensor, job: Tensor) -> Tensor:
        """Compute (members, rows), ring bytes (rows,), links (rows, 3), job -> log seconds.

        ``links`` are nodes, devices on the widest node, devices; ``job`` is a position.
        """
        nodes, widest, devices = links.unbind(-1)
        kind = nodes.long().clamp_max(KINDS) - 1
        shared = self.of_widest[:, kind] * widest.log() + self.of_nodes[:, kind] * nodes.log()
        wire_s = ring * torch.exp(shared - self.log_bytes_per_s[:, kind])
        own = self.of_job[:, job, kind].exp()
        sync_s = own * (self.log_fixed_s[:, kind].exp() + wire_s) * (devices > 1)
        gamma = 1 + (self.overlap + self.overlap_of_job[:, job]).exp()
        both = torch.stack([compute_s, sync_s]).clamp_min(LEAST_S).log()
        out: Tensor = torch.logsumexp(gamma * both, dim=0) / gamma
        return out

    def held_small(self) -> Tensor:
        """Of the jobs' own factors, for each member: those of an unseen job stay at 1."""
        factors: Tensor = self.of_job.square().sum((-1, -2)) + self.overlap_of_job.square().sum(-1)
        return HELD_SMALL * factors


def fit_law(
    compute_s: Array,
    gradient_bytes: Array,
    spreads: Sequence[Spread],
    jobs: Sequence[str],
    step_s: Array,
    row_weights: Array,
) -> Array:
    """Seconds of every row's step by the law of each member, shape (members, rows).

    Parameters
    ----------
    compute_s : ndarray of shape (members, rows)
        What the step would take on one device.
    jobs : sequence of str
        Rows of equal ones have factors in common.
    step_s : ndarray of shape (rows,)
        What it took; of rows that no member sees, anything above 0.
    row_weights : ndarray of shape (members, rows)
        0 hides a row from a member.
    """
    names = {name: position for position, name in enumerate(sorted(set(jobs)))}
    law = StepLaw(len(row_weights), len(names))
    links = torch.tensor([(one.nodes, one.widest, one.devices) for one in spreads]).float()
    of_row = torch.tensor([names[name] for name in jobs])
    inputs = _tensor(compute_s), _tensor(ring_bytes(gradient_bytes, spreads)), links, of_row
    y, weights = _tensor(np.log(step_s)), _tensor(row_weights)
    optimizer = torch.optim.Adam(law.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        off = (law(*inputs) - y).abs()
        ((weights * off).sum(-1) / weights.sum(-1) + law.held_small()).sum().backward()
        optimizer.step()
    with torch.no_grad():
        seconds: Array = law(*inputs).exp().numpy().astype(np.float64)
    return seconds


def _tensor(values: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).float()
