"""Networks of the learnt policy: a score for each job, one for waiting, and the state's value."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from presage.schedulers.policies.failures.learnt.placement_features import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
)

HIDDEN = 32
TRUST = 4.0  # initial weight of the rule's action: about 0.9 of the probability
_MASKED = -1e9


class Scores(NamedTuple):
    """Output of the scorer.

    Attributes
    ----------
    logits : Tensor of shape (S, J + 1)
        Logarithmic weights of the actions, the last one to wait; very low where not allowed.
    value : Tensor of shape (S,)
        Expected return.
    """

    logits: Tensor
    value: Tensor


class JobScorer(nn.Module):
    """One network for all jobs, so that it serves any number of jobs and GPUs.

    It corrects an analytic rule: before training the rule's action is the most likely one.

    What the other jobs are like reaches a job through the mean and the maximum over all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        inputs = len(JOB_FEATURES) + len(CLUSTER_FEATURES)
        self.encoder = nn.Sequential(
            nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh()
        )
        self.start = nn.Linear(2 * HIDDEN, 1)
        self.context = nn.Sequential(
            nn.Linear(2 * HIDDEN + len(CLUSTER_FEATURES), HIDDEN), nn.Tanh()
        )
        self.wait = nn.Linear(HIDDEN, 1)
        self.value = nn.Linear(HIDDEN, 1)
        self.trust = nn.Parameter(torch.tensor(TRUST))
        for last in (self.start, self.wait, self.value):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, jobs: Tensor, cluster: Tensor, allowed: Tensor, advised: Tensor) -> Scores:
        """Return scores.

        Parameters
        ----------
        jobs, cluster, allowed, advised : Tensor
            Of shapes (S, J, F), (S, G), (S, J + 1) and (S, J + 1).
        """
        can_start = allowed[:, :-1]
        wide = cluster[:, None].expand(-1, jobs.shape[1], -1)
        encoded = self.encoder(torch.cat([jobs, wide], dim=-1))  # (S, J, H)
        weight = can_start[..., None].to(encoded.dtype)
        mean = (encoded * weight).sum(1) / weight.sum(1).clamp(min=1.0)
        largest = (encoded * weight - (1.0 - weight)).amax(1)  # tanh is at least -1
        context = self.context(torch.cat([mean, largest, cluster], dim=-1))  # (S, H)
        others = context[:, None].expand(-1, jobs.shape[1], -1)
        start = self.start(torch.cat([encoded, others], dim=-1)).squeeze(-1)  # (S, J)
        logits = torch.cat([start, self.wait(context)], dim=1) + self.trust * advised.to(
            start.dtype
        )
        masked = torch.where(allowed, logits, torch.full_like(logits, _MASKED))
        return Scores(masked, self.value(context).squeeze(-1))
