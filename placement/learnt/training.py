"""Training of the learnt policy: imitation of an analytic rule, then PPO (L8) with masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from presage.placement.core.batches import Batches, BatchSettings, Ints, draw_batches, take_batches
from presage.placement.core.clusters import makespans_s
from presage.placement.core.rules import Rule, run_rule
from presage.placement.learnt.rollout import (
    Choose,
    Observation,
    Steps,
    follow_rule,
    joined,
    roll_out,
)
from presage.placement.learnt.scorer import JobScorer, Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Settings of the training.

    Attributes
    ----------
    imitated : int
        Number of batches on which the rule is imitated.
    imitation_epochs : int
        Passes over their decisions.
    rounds : int
        Rounds of PPO; each simulates new batches (L9).
    validated, validate_every : int
        Number of other batches on which the scorer is compared with the best one so far, and
        rounds between; the best one is returned.
    batches, repeats : int
        Batches of a round, and the number of rollouts of each.
    epochs, minibatch : int
        Passes over the decisions of a round, and decisions of one update.
    learning_rate, clip, entropy, gae : float
        Step size, clip of the probability ratio, weight of the entropy, and decay of the advantage.
    """

    imitated: int = 128
    imitation_epochs: int = 2
    rounds: int = 60
    batches: int = 32
    repeats: int = 4
    validated: int = 256
    validate_every: int = 10
    epochs: int = 2
    minibatch: int = 1024
    learning_rate: float = 1e-3
    clip: float = 0.2
    entropy: float = 0.002
    gae: float = 0.97


def train(
    worlds: tuple[BatchSettings, ...],
    rule: Rule,
    settings: TrainingSettings,
    *,
    seed: int,
    report: Callable[[int, float], None] = lambda done, ratio: None,
) -> JobScorer:
    """Train a scorer on batches drawn from worlds in turn; the same seed gives the same weights.

    ``report`` is called after each round with its number and the mean makespan over the rule's.
    """
    torch.manual_seed(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of sums must not depend on the machine
    try:
        scorer = JobScorer()
        optimizer = torch.optim.Adam(scorer.parameters(), settings.learning_rate)
        for i, world in enumerate(worlds):
            batches = draw_batches(world, settings.imitated // len(worlds), seed=seed * 1000 + i)
            imitate(scorer, optimizer, joined(roll_out(batches, rule, follow_rule)[1]), settings)
        others = [
            draw_batches(world, settings.validated // len(worlds), seed=seed * 1000 + 400 + i)
            for i, world in enumerate(worlds)
        ]
        best, weights = validate(scorer, others, rule), copy_weights(scorer)
        for i in range(settings.rounds):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * (1 - i / settings.rounds)
            drawn = draw_batches(
                worlds[i % len(worlds)], settings.batches, seed=(seed * 1000 + 500 + i) * 7919
            )
            report(i, improve(scorer, optimizer, drawn, rule, settings))
            if (i + 1) % settings.validate_every == 0:
                found = validate(scorer, others, rule)
                if found < best:
                    best, weights = found, copy_weights(scorer)
        scorer.load_state_dict(weights)
    finally:
        torch.set_num_threads(threads)
    return scorer


def validate(scorer: JobScorer, worlds: list[Batches], rule: Rule) -> float:
    """Return the mean makespan of the most likely actions over that of the rule."""
    return float(np.mean(validation_ratios(scorer, worlds, rule)))


def validation_ratios(scorer: JobScorer, worlds: list[Batches], rule: Rule) -> list[float]:
    """Return the mean makespan of the most likely actions over that of the rule, in each world."""
    return [
        float(
            makespans_s(roll_out(batches, rule, greedy(scorer))[0]).mean()
            / makespans_s(run_rule(batches, rule)).mean()
        )
        for batches in worlds
    ]


def copy_weights(scorer: JobScorer) -> dict[str, Tensor]:
    """Return a copy of the weights."""
    return {name: one.clone() for name, one in scorer.state_dict().items()}


def imitate(
    scorer: JobScorer, optimizer: torch.optim.Optimizer, steps: Steps, settings: TrainingSettings
) -> None:
    """Fit the scorer to the actions of the rule (cross entropy)."""
    inputs, action = tensors(steps.observation), torch.from_numpy(steps.action)
    for _ in range(settings.imitation_epochs):
        for chosen in torch.randperm(len(action)).split(settings.minibatch):  # type: ignore[no-untyped-call]
            scores: Scores = scorer(*(one[chosen] for one in inputs))
            loss = torch.nn.functional.cross_entropy(scores.logits, action[chosen])
            _step(scorer, optimizer, loss)


def improve(
    scorer: JobScorer,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    rule: Rule,
    settings: TrainingSettings,
) -> float:
    """Run a round of PPO and return the mean makespan over that of the rule.

    The return of a rollout compares its makespan with the rule's on the same failures, a control
    variate: the reward of L6 with the rule in place of random placements.
    """
    least_s = makespans_s(run_rule(batches, rule))
    repeated = take_batches(batches, np.repeat(np.arange(len(batches.gpus)), settings.repeats))
    clusters, rollout = roll_out(repeated, rule, sampling(scorer))
    ratio = makespans_s(clusters) / np.repeat(least_s, settings.repeats)
    steps = joined(rollout)
    inputs, action = tensors(steps.observation), torch.from_numpy(steps.action)
    with torch.no_grad():
        before: Scores = scorer(*inputs)
        log_before = _log_probability(before.logits, action)
    advantage, target = advantages(before.value.numpy(), steps.cluster, 1 - ratio, settings.gae)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(settings.epochs):
        for chosen in torch.randperm(len(action)).split(settings.minibatch):  # type: ignore[no-untyped-call]
            scores: Scores = scorer(*(one[chosen] for one in inputs))
            log_ratio = _log_probability(scores.logits, action[chosen]) - log_before[chosen]
            gain = advantage[chosen]
            clipped = log_ratio.exp().clamp(1 - settings.clip, 1 + settings.clip)
            surrogate = torch.minimum(log_ratio.exp() * gain, clipped * gain).mean()
            entropy = _entropy(scores.logits).mean()
            value = torch.nn.functional.mse_loss(scores.value, target[chosen])
            _step(scorer, optimizer, 10 * value - surrogate - settings.entropy * entropy)
    return float(ratio.mean())


def advantages(
    value: np.ndarray, cluster: Ints, returns: np.ndarray, decay: float
) -> tuple[Tensor, Tensor]:
    """Return generalized advantages and value targets of decisions, in order of time.

    The reward comes at the end of each cluster's batch.

    References
    ----------
    Schulman et al.: High-dimensional continuous control using generalized advantage estimation,
    ICLR 2016.
    """
    found = np.empty(len(value), np.float32)
    next_value, running = returns.astype(np.float64).copy(), np.zeros(len(returns))
    for i in range(len(value) - 1, -1, -1):
        b = cluster[i]
        running[b] = next_value[b] - value[i] + decay * running[b]
        next_value[b] = value[i]
        found[i] = running[b]
    return torch.from_numpy(found), torch.from_numpy(found + value)


def sampling(scorer: JobScorer) -> Choose:
    """Return a choice of actions by their probabilities (L4)."""

    def choose(observation: Observation, rule_action: Ints) -> Ints:
        del rule_action
        with torch.no_grad():
            scores: Scores = scorer(*tensors(observation))
            chosen = torch.multinomial(torch.softmax(scores.logits, dim=1), 1).squeeze(1)
        found: Ints = chosen.numpy()
        return found

    return choose


def greedy(scorer: JobScorer) -> Choose:
    """Return a choice of the most likely actions (L4)."""

    def choose(observation: Observation, rule_action: Ints) -> Ints:
        del rule_action
        with torch.no_grad():
            found: Ints = scorer(*tensors(observation)).logits.argmax(1).numpy()
        return found

    return choose


def tensors(observation: Observation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return an observation as tensors."""
    jobs, cluster, allowed, advised = (torch.from_numpy(one) for one in observation)
    return jobs, cluster, allowed, advised


def _log_probability(logits: Tensor, action: Tensor) -> Tensor:
    return torch.log_softmax(logits, dim=1).gather(1, action[:, None]).squeeze(1)


def _entropy(logits: Tensor) -> Tensor:
    log_all = torch.log_softmax(logits, dim=1)
    return -(log_all.exp() * log_all).sum(1)


def _step(scorer: JobScorer, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(scorer.parameters(), 0.5)
    optimizer.step()
