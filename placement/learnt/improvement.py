"""Improvement of a rule by counterfactual rollouts of all actions of a state.

Each allowed action of a visited state is taken, the rule decides from then on, and the makespan is
compared with that of the rule's own action, on the same jobs and failures. A scorer that predicts
these gains is one step of policy iteration ahead of the rule. The core makes it affordable.

References
----------
Bertsekas and Castanon: Rollout algorithms for stochastic scheduling problems, 1999.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from presage.placement.core.batches import Batches, BatchSettings, Ints, draw_batches
from presage.placement.core.clusters import Clusters, advance, new_clusters
from presage.placement.core.compiling import compiled
from presage.placement.core.rules import Rule, decide, idle_gpus, place, typed
from presage.placement.learnt.observation import (
    Bits,
    act_all,
    begin_all,
    observe_all,
)
from presage.placement.learnt.rollout import Observation
from presage.placement.learnt.scorer import JobScorer
from presage.placement.learnt.training import tensors, validation_ratios
from presage.schedulers.policies.failures.learnt.placement_features import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
)
from presage.system.arrays import Array

GAIN = 100.0  # logits of a scorer are gains in percent of the makespan
MOST_GAIN = 30.0
LEAST_GAINS = (0.25, 0.5, 0.75, 1.0, 2.0)  # percent
LEAST_JUDGED = 8  # batches of each further setting


@compiled
def copy_cluster(source: Clusters, target: Clusters, b: int) -> None:
    """Copy the state of a cluster."""
    for j in range(source.jobs.shape[1]):
        target.jobs[b, j] = source.jobs[b, j]
    for g in range(source.gpus.shape[1]):
        target.gpus[b, g] = source.gpus[b, g]
    target.totals[b] = source.totals[b]


@compiled
def makespan_after(clusters: Clusters, scratch: Clusters, rule: Rule, b: int, action: int) -> float:
    """Return the end of the last job if an action is taken now and the rule decides afterwards."""
    copy_cluster(clusters, scratch, b)
    jobs = scratch.jobs[b]
    if action < len(jobs):
        idle = idle_gpus(scratch, rule, b, False)
        place(scratch, rule, b, action, idle[: jobs[action]["gpus"]])
        decide(scratch, rule, b)
    while advance(scratch, b):
        decide(scratch, rule, b)
    last_s = 0.0
    for j in range(len(jobs)):
        last_s = max(last_s, jobs[j]["done_s"])
    return last_s


@compiled
def gains_all(
    clusters: Clusters,
    scratch: Clusters,
    rule: Rule,
    active: Ints,
    allowed: Bits,
    by_rule: Ints,
    gains: Array,
) -> None:
    """Write the relative gain of each allowed action over the rule's; NaN for other actions."""
    for i in range(len(active)):
        base_s = makespan_after(clusters, scratch, rule, active[i], by_rule[i])
        for action in range(allowed.shape[1]):
            gains[i, action] = np.nan
            if action == by_rule[i]:
                gains[i, action] = 0.0
            elif allowed[i, action]:
                other_s = makespan_after(clusters, scratch, rule, active[i], action)
                gains[i, action] = 1 - other_s / base_s


def label(
    batches: Batches, rule: Rule, rng: np.random.Generator, *, explored: float
) -> tuple[Observation, Array]:
    """Return visited states and the gains of their actions, of shape (S, J + 1).

    Parameters
    ----------
    explored : float
        Probability of a random action in place of the rule's.
    """
    clusters, rule = new_clusters(batches), typed(rule)
    scratch = new_clusters(batches)
    goes_on = np.zeros(len(clusters.totals), bool)
    begin_all(clusters, rule, goes_on)
    active, found, labels = np.flatnonzero(goes_on), [], []
    n_jobs = clusters.jobs.shape[1]
    while len(active):
        jobs = np.empty((len(active), n_jobs, len(JOB_FEATURES)))
        cluster = np.empty((len(active), len(CLUSTER_FEATURES)))
        allowed = np.empty((len(active), n_jobs + 1), bool)
        by_rule, gains = np.empty(len(active), np.int64), np.empty(allowed.shape)
        observe_all(clusters, rule, active, jobs, cluster, allowed, by_rule)
        gains_all(clusters, scratch, rule, active, allowed, by_rule, gains)
        advised = np.arange(n_jobs + 1) == by_rule[:, None]
        found.append(
            Observation(
                jobs.astype(np.float32), cluster.astype(np.float32), allowed, advised & allowed
            )
        )
        labels.append(gains)
        random = (rng.random(allowed.shape) * allowed).argmax(axis=1)
        action = np.where(rng.random(len(active)) < explored, random, by_rule)
        goes_on = np.zeros(len(active), bool)
        act_all(clusters, rule, active, action, goes_on)
        active = active[goes_on]
    joined = Observation(*(np.concatenate(one) for one in zip(*found, strict=True)))
    return joined, np.concatenate(labels)


Labelled = tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor]  # observations, gains in percent


def labelled_tensors(observation: Observation, gains: Array) -> Labelled:
    """Return observations and the limited gains of their actions in percent, as tensors."""
    limited = np.clip(GAIN * gains, -MOST_GAIN, MOST_GAIN).astype(np.float32)
    return tensors(observation), torch.from_numpy(limited)


def fit_gains(
    scorer: JobScorer,
    groups: Sequence[Labelled],
    *,
    epochs: int,
    minibatch: int = 512,
    learning_rate: float = 3e-3,
) -> None:
    """Fit the scorer's logits to the gains of actions over the advised one, in percent.

    Parameters
    ----------
    groups : sequence of Labelled
        States with equal numbers of jobs; a minibatch is of one group.
    """
    weight = scorer.trust.data.clone()
    scorer.trust.data.zero_()
    optimizer = torch.optim.Adam(scorer.parameters(), learning_rate)
    steps = epochs * sum(len(gains) // minibatch + 1 for _, gains in groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for group, chosen in _minibatches(groups, minibatch):
            inputs, gains = groups[group]
            target = gains[chosen]
            jobs, cluster, allowed, advised = (one[chosen] for one in inputs)
            logits = scorer(jobs, cluster, allowed, advised).logits
            base = (logits * advised).sum(1, keepdim=True)
            known = ~torch.isnan(target) & allowed & ~advised
            error = torch.nn.functional.smooth_l1_loss(
                (logits - base)[known], target[known], beta=3.0
            )
            optimizer.zero_grad()
            error.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(scorer.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    scorer.trust.data.copy_(weight)


def _minibatches(groups: Sequence[Labelled], minibatch: int) -> list[tuple[int, Tensor]]:
    """Return the group and the rows of each minibatch of an epoch, in random order."""
    found = [
        (group, chosen)
        for group, (_, gains) in enumerate(groups)
        for chosen in torch.randperm(len(gains)).split(minibatch)  # type: ignore[no-untyped-call]
    ]
    if len(groups) == 1:
        return found
    order: list[int] = torch.randperm(len(found)).tolist()
    return [found[i] for i in order]


def improve_rule(
    worlds: Sequence[BatchSettings],
    rule: Rule,
    *,
    seed: int,
    labelled: int = 1500,
    epochs: int = 4,
    validated: int = 500,
    judged: Sequence[BatchSettings] = (),
) -> JobScorer:
    """Return a scorer that departs from a rule where it predicts a gain.

    The gain from which it does so is the best one on other batches, among those with which it is
    nowhere worse than the rule; the rule itself is a candidate.

    Parameters
    ----------
    worlds : sequence of BatchSettings
        Settings of the batches, such as clusters of several sizes.
    labelled, validated : int
        Number of batches in all worlds together.
    judged : sequence of BatchSettings
        Further settings in which it may not be worse than the rule, such as larger clusters.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    groups: list[Labelled] = []
    others: list[Batches] = []
    for i, world in enumerate(worlds):
        drawn = draw_batches(world, labelled // len(worlds), seed=seed * 1000 + 900 + 2 * i)
        groups.append(labelled_tensors(*label(drawn, rule, rng, explored=0.15)))
        others.append(draw_batches(world, validated // len(worlds), seed=seed * 1000 + 901 + 2 * i))
    fewest = min(world.jobs for world in worlds)
    for i, world in enumerate(judged):
        count = max(LEAST_JUDGED, round(validated * fewest / world.jobs))
        others.append(draw_batches(world, min(validated, count), seed=seed * 1000 + 951 + 2 * i))
    scorer = JobScorer()
    fit_gains(scorer, groups, epochs=epochs)
    best, trust = 1.0, MOST_GAIN * 10
    for least_gain in LEAST_GAINS:
        scorer.trust.data.fill_(least_gain)
        ratios = validation_ratios(scorer, others, rule)
        found = float(np.mean(ratios[: len(worlds)]))
        if found < best and max(ratios[len(worlds) :], default=0.0) <= 1:
            best, trust = found, least_gain
    scorer.trust.data.fill_(trust)
    return scorer
