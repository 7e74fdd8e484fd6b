"""Training and use of the published policy on the core (L4, L7 to L12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from presage.placement.core.batches import Batches, take_batches
from presage.placement.core.clusters import (
    IDLE,
    PENDING,
    Clusters,
    advance,
    makespans_s,
    new_clusters,
    start,
)
from presage.placement.published.networks import PublishedPolicy, state_of
from presage.placement.published.replay import BatchMode, Replay, Transition
from presage.placement.published.rewards import RewardKind, random_makespans_s, reward


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSettings:
    """Settings of the training; what the publication leaves open has a default of ours.

    Attributes
    ----------
    rounds : int
        Planned number of rounds (L9); each places one batch and updates once.
    random_placements : int
        Number of random placements of which the best one counts (L5).
    reward : str
        Kind of reward (L6).
    capacity : int
        Size of the replay buffer (L7).
    batch : str
        ``period`` for as many samples as GPUs were chosen in the round, ``all`` for the buffer.
    update : str
        ``importance`` weighs samples by the probability ratio, at most ``most_ratio``; ``clip`` is
        PPO's clipped ratio (L8).
    discount : float
        Weight of the next state's value; at 0 each choice of a batch gets the batch's reward.
    """

    rounds: int = 300
    random_placements: int = 8
    reward: RewardKind = "saved"
    capacity: int = 4096
    batch: BatchMode = "period"
    update: Literal["importance", "clip"] = "importance"
    most_ratio: float = 2.0
    clip: float = 0.2
    discount: float = 0.0
    learning_rate: float = 3e-4
    entropy: float = 0.003


def train_published(
    batches: Batches,
    settings: PublishedSettings,
    *,
    seed: int,
    report: Callable[[int, float], None] = lambda done, reward: None,
) -> PublishedPolicy:
    """Train the policy on batches in turn; ``report`` gets each round's number and reward."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    count, gpus = batches.hazard_per_s.shape
    policy, replay = PublishedPolicy(gpus), Replay(settings.capacity)
    optimizer = torch.optim.Adam(policy.parameters(), settings.learning_rate)
    random_s = random_makespans_s(batches, settings.random_placements, seed=seed)
    for i in range(settings.rounds):
        b = i % count
        one = take_batches(batches, np.array([b]))
        clusters, transitions = place_batch(one, policy, samples=True)
        gained = reward(settings.reward, random_s[b], float(makespans_s(clusters)[0]))
        replay.add(transition._replace(reward=gained) for transition in transitions)
        update(policy, optimizer, replay.batch(settings.batch, rng), settings)
        report(i, gained)
    return policy


def place_batch(
    batches: Batches, policy: PublishedPolicy, *, samples: bool
) -> tuple[Clusters, list[Transition]]:
    """Simulate the first batch; jobs that fit start by arrival, GPU after GPU (L4, L10)."""
    clusters = new_clusters(batches)
    found: list[Transition] = []
    while advance(clusters, 0):
        for job in np.flatnonzero(clusters.jobs["phase"][0] == PENDING).tolist():
            needed = int(clusters.jobs["gpus"][0, job])
            if needed > (clusters.gpus["holder"][0] == IDLE).sum():
                continue
            chosen: list[int] = []
            for _ in range(needed):
                before = state_of(clusters, 0, job, chosen)
                gpu, log_probability = policy.choose(before, samples=samples)
                chosen.append(gpu)
                after = state_of(clusters, 0, job, chosen).vector()
                found.append(Transition(before.vector(), gpu, 0.0, after, log_probability))
            interval_s = float(clusters.jobs["interval_s"][0, job])
            start(clusters, 0, job, np.array(chosen), interval_s)
    return clusters, found


def makespans_published_s(batches: Batches, policy: PublishedPolicy) -> list[float]:
    """Return the makespan of each batch with the most likely GPUs; no value is computed."""
    found = []
    for b in range(len(batches.gpus)):
        one = take_batches(batches, np.array([b]))
        clusters, _ = place_batch(one, policy, samples=False)
        found.append(float(makespans_s(clusters)[0]))
    return found


def update(
    policy: PublishedPolicy,
    optimizer: torch.optim.Optimizer,
    batch: list[Transition],
    settings: PublishedSettings,
) -> None:
    """Update both networks by back-propagation (L8): actor and critic, corrected for replay."""
    states = torch.from_numpy(np.stack([one.state for one in batch]))
    following = torch.from_numpy(np.stack([one.next_state for one in batch]))
    action = torch.tensor([one.action for one in batch])
    rewards = torch.tensor([one.reward for one in batch], dtype=torch.float32)
    before = torch.tensor([one.log_probability for one in batch])
    value = policy.value(states).squeeze(1)
    with torch.no_grad():
        target = rewards + settings.discount * policy.value(following).squeeze(1)
        advantage = target - value
    log_all = policy.log_probabilities(states)
    ratio = (log_all.gather(1, action[:, None]).squeeze(1) - before).exp()
    gain = _surrogate(ratio, advantage, settings).mean()
    entropy = -(log_all.exp() * log_all.clamp(min=-50.0)).sum(1).mean()
    loss = torch.nn.functional.mse_loss(value, target) - gain - settings.entropy * entropy
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    optimizer.step()


def _surrogate(ratio: Tensor, advantage: Tensor, settings: PublishedSettings) -> Tensor:
    if settings.update == "importance":
        return ratio.clamp(max=settings.most_ratio) * advantage
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    return torch.minimum(ratio * advantage, clipped * advantage)
