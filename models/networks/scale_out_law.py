"""Step time of data-parallel training by first principles, with a few fitted constants.

After Pollux (Qiao et al., OSDI 2021, section 3.2): a step computes gradients for g seconds and
synchronizes them for s seconds, and the two overlap partly: (g^gamma + s^gamma)^(1/gamma), which is
their sum at gamma = 1 and tends to the longer one. Pollux fits s for each job, as a line in the
number of devices. Here s follows from the bytes that a ring all-reduce moves over the slowest link,
2 (n - 1) / n times the gradients, so it is also defined for a job that never ran on several
devices. A job with such runs deviates by factors of its own, which a penalty keeps small. Links
within a node, between two nodes and between more nodes are three kinds; the devices of a node share
its link.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from presage.features.device.node_spread import Spread
from presage.system.arrays import Array

LINK_KINDS = 3  # within a node, between two nodes, between more
# Initial constants: seconds of any synchronization, and bytes per second of each kind of link.
START_S, START_BYTES_PER_S = 5e-3, (8e9, 6e8, 1e9)
STEPS, LEARNING_RATE = 600, 0.05
JOB_FACTOR_PENALTY = 1e-3  # per squared log factor, in log seconds
MIN_SECONDS = 1e-9


def ring_bytes(gradient_bytes: Array, spreads: Sequence[Spread]) -> Array:
    """Return the bytes that each device sends in a ring all-reduce."""
    devices = np.array([spread.devices for spread in spreads], dtype=np.float64)
    return 2 * (devices - 1) / devices * gradient_bytes


class StepTimeLaw(nn.Module):
    """Step-time law and its constants, for every member of a stack."""

    def __init__(self, members: int, jobs: int) -> None:
        super().__init__()
        rates = torch.tensor(START_BYTES_PER_S).log()
        self.log_fixed_s = nn.Parameter(torch.full((members, LINK_KINDS), float(np.log(START_S))))
        self.log_bytes_per_s = nn.Parameter(rates.repeat(members, 1))
        # Exponents of the largest number of devices that share a link, and of the nodes.
        self.widest_power = nn.Parameter(torch.zeros(members, LINK_KINDS))
        self.node_power = nn.Parameter(torch.zeros(members, LINK_KINDS))
        self.overlap = nn.Parameter(torch.zeros(members, 1))
        self.job_log_factor = nn.Parameter(torch.zeros(members, jobs, LINK_KINDS))
        self.job_overlap = nn.Parameter(torch.zeros(members, jobs))

    def forward(self, compute_s: Tensor, ring: Tensor, links: Tensor, job: Tensor) -> Tensor:
        """Return log seconds (members, rows).

        Parameters
        ----------
        compute_s : Tensor of shape (members, rows)
            Seconds of the step on one device.
        ring : Tensor of shape (rows,)
            Bytes of :func:`ring_bytes`.
        links : Tensor of shape (rows, 3)
            Nodes, devices on the widest node, devices.
        job : Tensor of int, shape (rows,)
            Position of the row's job.
        """
        nodes, widest, devices = links.unbind(-1)
        kind = nodes.long().clamp_max(LINK_KINDS) - 1
        shared = self.widest_power[:, kind] * widest.log() + self.node_power[:, kind] * nodes.log()
        wire_s = ring * torch.exp(shared - self.log_bytes_per_s[:, kind])
        factor = self.job_log_factor[:, job, kind].exp()
        sync_s = factor * (self.log_fixed_s[:, kind].exp() + wire_s) * (devices > 1)
        gamma = 1 + (self.overlap + self.job_overlap[:, job]).exp()
        both = torch.stack([compute_s, sync_s]).clamp_min(MIN_SECONDS).log()
        out: Tensor = torch.logsumexp(gamma * both, dim=0) / gamma
        return out

    def job_penalty(self) -> Tensor:
        """Return the penalty (members,) on the jobs' own factors, which are 1 for unseen jobs."""
        factors: Tensor = (
            self.job_log_factor.square().sum((-1, -2)) + self.job_overlap.square().sum(-1)
        )  # fmt: skip
        return JOB_FACTOR_PENALTY * factors


def fit_step_times(
    compute_s: Array,
    gradient_bytes: Array,
    spreads: Sequence[Spread],
    jobs: Sequence[str],
    step_s: Array,
    row_weights: Array,
) -> Array:
    """Fit the law of each member; return its step times in seconds, shape (members, rows).

    Parameters
    ----------
    compute_s : ndarray of shape (members, rows)
        Seconds of the step on one device.
    gradient_bytes : ndarray of shape (rows,)
        Bytes of the job's gradients.
    spreads : sequence of Spread
        Nodes and devices of each row.
    jobs : sequence of str
        Job of each row; rows of one job share its factors.
    step_s : ndarray of shape (rows,)
        Measured seconds; any positive number for rows that are hidden from all members.
    row_weights : ndarray of shape (members, rows)
        0 hides a row from a member.
    """
    positions = {name: position for position, name in enumerate(sorted(set(jobs)))}
    law = StepTimeLaw(len(row_weights), len(positions))
    links = torch.tensor([(s.nodes, s.widest, s.devices) for s in spreads]).float()
    job = torch.tensor([positions[name] for name in jobs])
    inputs = _to_tensor(compute_s), _to_tensor(ring_bytes(gradient_bytes, spreads)), links, job
    y, weights = _to_tensor(np.log(step_s)), _to_tensor(row_weights)
    optimizer = torch.optim.Adam(law.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        error = (law(*inputs) - y).abs()
        loss = (weights * error).sum(-1) / weights.sum(-1) + law.job_penalty()
        loss.sum().backward()
        optimizer.step()
    with torch.no_grad():
        seconds: Array = law(*inputs).exp().numpy().astype(np.float64)
    return seconds


def _to_tensor(values: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).float()
