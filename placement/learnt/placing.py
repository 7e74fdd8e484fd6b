"""Learnt choice of GPUs for jobs in order of arrival: one scorer shared by all GPUs."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from presage.placement.core.batches import Batches, BatchSettings, Ints, draw_batches, take_batches
from presage.placement.core.clusters import (
    IDLE,
    PENDING,
    Clusters,
    advance,
    makespans_s,
    new_clusters,
    start,
)
from presage.placement.core.compiling import compiled
from presage.placement.core.rules import RULES, remaining_s, run_rule
from presage.placement.learnt.observation import GPU_FEATURES, Bits
from presage.system.arrays import Array

HIDDEN = 16
TRUST = 4.0  # initial weight of a low failure rate
Decisions = list[tuple[Tensor, Tensor, Tensor, Ints]]  # features, idle, order, clusters


class GpuScorer(nn.Module):
    """One network for all GPUs; before training the lowest failure rate scores best."""

    def __init__(self) -> None:
        super().__init__()
        last = nn.Linear(HIDDEN, 1)
        self.network = nn.Sequential(nn.Linear(len(GPU_FEATURES), HIDDEN), nn.Tanh(), last)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, gpus: Tensor) -> Tensor:
        """Return a score of shape (S, N) for features of shape (S, N, F)."""
        found: Tensor = self.network(gpus).squeeze(-1) - TRUST * gpus[..., 0]
        return found


@compiled
def observe_gpus(clusters: Clusters, b: int, values: Array, idle: Bits) -> int:
    """Move a cluster to its next start; write the features of the idle GPUs; return the job.

    The job is the first pending one that fits; -1 at the end.
    """
    jobs, gpus = clusters.jobs[b], clusters.gpus[b]
    n_gpus = len(gpus)
    while True:
        count, rate = 0, 0.0
        for g in range(n_gpus):
            idle[g] = gpus[g]["holder"] == IDLE
            count += 1 if idle[g] else 0
            rate += gpus[g]["hazard_per_s"] / n_gpus
        for j in range(len(jobs)):
            n = jobs[j]["gpus"]
            if jobs[j]["phase"] == PENDING and n <= count:
                left_s, safer = remaining_s(jobs, j), 0
                for i in range(n_gpus):
                    g = gpus[i]["safest"]
                    hazard = gpus[g]["hazard_per_s"]
                    values[g, 0] = math.log((hazard + 1e-12) / (rate + 1e-12))
                    values[g, 1] = min(3.0, hazard * left_s)
                    values[g, 2] = safer / n_gpus
                    values[g, 3] = n / n_gpus
                    safer += 1 if idle[g] else 0
                return j
        if not advance(clusters, b):
            return -1


def roll_out_gpus(
    batches: Batches, scorer: GpuScorer, *, samples: bool
) -> tuple[Clusters, Decisions]:
    """Simulate all batches: each job gets the idle GPUs with the best scores, or a random draw."""
    clusters = new_clusters(batches)
    count, n_gpus = batches.hazard_per_s.shape
    active, decisions = np.arange(count), Decisions()
    while len(active):
        values = np.zeros((len(active), n_gpus, len(GPU_FEATURES)))
        idle = np.zeros((len(active), n_gpus), bool)
        jobs = np.array(
            [observe_gpus(clusters, b, values[i], idle[i]) for i, b in enumerate(active.tolist())]
        )
        going = jobs >= 0
        active, jobs = active[going], jobs[going]
        features = torch.from_numpy(values[going].astype(np.float32))
        is_idle = torch.from_numpy(idle[going])
        with torch.no_grad():
            scores = scorer(features)
            if samples:  # by Gumbel noise: a draw without replacement (Plackett-Luce)
                scores = scores - torch.log(-torch.log(torch.rand_like(scores)))
            order = torch.where(is_idle, scores, -math.inf).argsort(dim=1, descending=True)
        needed = batches.gpus[active, jobs]
        for i, (b, job) in enumerate(zip(active.tolist(), jobs.tolist(), strict=True)):
            interval_s = float(clusters.jobs["interval_s"][b, job])
            start(clusters, b, job, order[i, : needed[i]].numpy(), interval_s)
        chosen = torch.where(torch.arange(n_gpus) < torch.from_numpy(needed)[:, None], order, -1)
        decisions.append((features, is_idle, chosen, active))
    return clusters, decisions


def log_probability(scores: Tensor, idle: Tensor, chosen: Tensor) -> Tensor:
    """Return the log probability of draws without replacement; -1 ends the list of a draw."""
    left = torch.where(idle, scores, torch.full_like(scores, -1e9))
    total = torch.zeros(len(scores))
    for k in range(chosen.shape[1]):
        is_drawn = chosen[:, k] >= 0
        if not is_drawn.any():
            break
        gpu = chosen[:, k].clamp(min=0)[:, None]
        each = left.gather(1, gpu).squeeze(1) - left.logsumexp(1)
        total = total + torch.where(is_drawn, each, torch.zeros_like(each))
        left = left.scatter(1, gpu, -1e9)
    return total


def train_placing(
    world: BatchSettings, *, seed: int, rounds: int = 12, batches: int = 24, repeats: int = 4
) -> GpuScorer:
    """Train a scorer by PPO from least-failing-first on; the best on other batches is returned."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    scorer = GpuScorer()
    optimizer = torch.optim.Adam(scorer.parameters(), 3e-3)
    others = draw_batches(world, 256, seed=seed * 1000 + 1)
    best = makespans_s(run_rule(others, RULES["least-failing"])).mean()
    weights = {name: one.clone() for name, one in scorer.state_dict().items()}
    for i in range(rounds):
        drawn = draw_batches(world, batches, seed=seed * 1000 + 10 + i)
        _improve(scorer, optimizer, drawn, repeats)
        if i % 4 == 3:
            found = makespans_s(roll_out_gpus(others, scorer, samples=False)[0]).mean()
            if found < best:
                best = found
                weights = {name: one.clone() for name, one in scorer.state_dict().items()}
    scorer.load_state_dict(weights)
    return scorer


def _improve(
    scorer: GpuScorer, optimizer: torch.optim.Optimizer, batches: Batches, repeats: int
) -> None:
    least_s = makespans_s(run_rule(batches, RULES["least-failing"]))
    repeated = take_batches(batches, np.repeat(np.arange(len(batches.gpus)), repeats))
    clusters, decisions = roll_out_gpus(repeated, scorer, samples=True)
    gain = 1 - makespans_s(clusters).reshape(-1, repeats) / least_s[:, None]
    gain = (gain - gain.mean(axis=1, keepdims=True)).ravel()
    features, idle, chosen = (torch.cat(one) for one in list(zip(*decisions, strict=True))[:3])
    cluster = np.concatenate([one[3] for one in decisions])
    advantage = torch.from_numpy((gain / (gain.std() + 1e-8))[cluster].astype(np.float32))
    with torch.no_grad():
        before = log_probability(scorer(features), idle, chosen)
    for _ in range(3):
        ratio = (log_probability(scorer(features), idle, chosen) - before).exp()
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(scorer.parameters(), 0.5)
        optimizer.step()
