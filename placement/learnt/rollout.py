"""Rollouts of a policy on many clusters at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from presage.placement.core.batches import Batches, Ints
from presage.placement.core.clusters import Clusters, new_clusters
from presage.placement.core.rules import Rule, typed
from presage.placement.learnt.observation import (
    Bits,
    act_all,
    begin_all,
    observe_all,
)
from presage.schedulers.policies.failures.learnt.placement_features import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
)
from presage.system.arrays import Array


class Observation(NamedTuple):
    """Observations of S clusters; see :func:`presage.placement.learnt.observation.observe`.

    Attributes
    ----------
    jobs : ndarray of float32, shape (S, J, len(JOB_FEATURES))
    cluster : ndarray of float32, shape (S, len(CLUSTER_FEATURES))
    allowed : ndarray of bool, shape (S, J + 1)
    advised : ndarray of bool, shape (S, J + 1)
        The action of the analytic rule.
    """

    jobs: Array
    cluster: Array
    allowed: Bits
    advised: Bits


class Steps(NamedTuple):
    """Decisions of a rollout, by time; the first axis is the decision.

    Attributes
    ----------
    observation : Observation
    action : ndarray of int, shape (S,)
        Job that was started; J to wait.
    rule_action : ndarray of int, shape (S,)
        Job that the rule would have started.
    cluster : ndarray of int, shape (S,)
        Cluster of each decision.
    """

    observation: Observation
    action: Ints
    rule_action: Ints
    cluster: Ints


Choose = Callable[[Observation, Ints], Ints]  # observation and the rule's actions -> actions


def roll_out(batches: Batches, rule: Rule, choose: Choose) -> tuple[Clusters, list[Steps]]:
    """Simulate all batches to their end with the decisions of a policy.

    Parameters
    ----------
    rule : Rule
        Choice of GPUs, order of the feature ``rank``, and the actions offered to ``choose``.

    Returns
    -------
    clusters, steps : Clusters, list of Steps
        The clusters at the end, and the decisions: one entry for each decision of all clusters
        that still run.
    """
    clusters, rule = new_clusters(batches), typed(rule)
    goes_on = np.zeros(len(clusters.totals), bool)
    begin_all(clusters, rule, goes_on)
    active = np.flatnonzero(goes_on)
    steps: list[Steps] = []
    while len(active):
        jobs = np.empty((len(active), clusters.jobs.shape[1], len(JOB_FEATURES)))
        cluster = np.empty((len(active), len(CLUSTER_FEATURES)))
        allowed = np.empty((len(active), clusters.jobs.shape[1] + 1), bool)
        by_rule = np.empty(len(active), np.int64)
        observe_all(clusters, rule, active, jobs, cluster, allowed, by_rule)
        advised = np.arange(allowed.shape[1]) == by_rule[:, None]
        found = Observation(
            jobs.astype(np.float32), cluster.astype(np.float32), allowed, advised & allowed
        )
        action = choose(found, by_rule)
        steps.append(Steps(found, action, by_rule, active))
        goes_on = np.zeros(len(active), bool)
        act_all(clusters, rule, active, action, goes_on)
        active = active[goes_on]
    return clusters, steps


def follow_rule(observation: Observation, rule_action: Ints) -> Ints:
    """Choose the actions of the rule; it waits only where that is allowed."""
    jobs = observation.allowed.shape[1] - 1
    may_wait = observation.allowed[:, jobs]
    first = observation.allowed[:, :jobs].argmax(axis=1)
    found: Ints = np.where((rule_action == jobs) & ~may_wait, first, rule_action)
    return found


def joined(steps: list[Steps]) -> Steps:
    """Return the decisions of a rollout as one array each."""
    observations = Observation(
        *(np.concatenate(one) for one in zip(*(s.observation for s in steps), strict=True))
    )
    return Steps(
        observations,
        np.concatenate([s.action for s in steps]),
        np.concatenate([s.rule_action for s in steps]),
        np.concatenate([s.cluster for s in steps]),
    )
