"""Failure rates of the devices that a gang could have later, as running jobs end."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from presage.schedulers.core.cluster import Cluster
from presage.system.arrays import Array

IDLE = -np.inf  # delay of a device that can be used now


class LaterRates(NamedTuple):
    """Total failure rate of the best devices for a gang, from the first release on.

    Attributes
    ----------
    steps : list of tuple of float
        Different times from now on at which the rate changes, rising, and the rate from then on.
        The first time is that of the first release.
    least_per_s : float
        Smallest of these rates; infinite without releases.
    """

    steps: list[tuple[float, float]]
    least_per_s: float


NEVER = LaterRates([], np.inf)


def later_rates(
    gang: int, rate_per_s: float, delay_s: Array, rates_per_s: Array, cluster: Cluster
) -> LaterRates:
    """Return the rates of the devices that ``choose_devices`` would choose after each release.

    Parameters
    ----------
    gang : int
        Number of devices; so many or more are idle.
    rate_per_s : float
        Total rate of the devices that ``choose_devices`` chooses now.
    delay_s : ndarray of shape (devices,)
        Time until each device is released; ``IDLE`` if it is idle, infinite if it is never released
        or of a kind that the job does not accept.
    rates_per_s : ndarray of shape (devices,)
        Failure rates.
    """
    first_s = float(delay_s[delay_s > IDLE].min(initial=np.inf))
    if first_s == np.inf:
        return NEVER
    steps = [(first_s, rate_per_s)]
    is_flat = len(cluster.nodes) == cluster.devices
    on_node = [] if is_flat else _on_one_node(gang, delay_s, rates_per_s, cluster)
    whole_s = on_node[0][0] if on_node else np.inf  # from when on a node holds the whole gang
    if whole_s > IDLE:
        steps += _anywhere(gang, delay_s, rates_per_s, whole_s)
    steps += [step for step in on_node if step[0] > IDLE]
    steps = list(dict(steps).items())  # of several at one time, the last one
    return LaterRates(steps, min(rate for _, rate in steps))


def _on_one_node(
    gang: int, delay_s: Array, rates_per_s: Array, cluster: Cluster
) -> list[tuple[float, float]]:
    """Return the times at which the best node for a gang changes, and its rate."""
    node, shape = cluster.columns.node, (len(cluster.nodes), cluster.nodes_of(()).largest)
    slot = np.arange(len(node)) - np.array(cluster.first_device)[node]
    delays_s, rates = np.full(shape, np.inf), np.zeros(shape)
    delays_s[node, slot], rates[node, slot] = delay_s, rates_per_s
    order = np.argsort(delays_s, axis=1, kind="stable")
    delays_s = np.take_along_axis(delays_s, order, axis=1)
    rates = np.take_along_axis(rates, order, axis=1)
    when, totals = [np.empty(0)], [np.empty(0)]
    for released in range(gang, shape[1] + 1):  # devices of the node, the first ones to be idle
        can = delays_s[:, released - 1] < np.inf
        when.append(delays_s[can, released - 1])
        totals.append(np.sort(rates[can, :released], axis=1)[:, :gang].sum(axis=1))
    by_time = np.argsort(np.concatenate(when), kind="stable")
    times_s, total = np.concatenate(when)[by_time], np.concatenate(totals)[by_time]
    best = np.minimum.accumulate(total)
    falls = np.flatnonzero(best < np.concatenate(([np.inf], best))[:-1])
    return list(zip(times_s[falls].tolist(), total[falls].tolist(), strict=True))


def _anywhere(
    gang: int, delay_s: Array, rates_per_s: Array, before_s: float
) -> list[tuple[float, float]]:
    """Return the times before a time at which the safest devices of all change, and their rate."""
    highest = [-rate for rate in np.sort(rates_per_s[delay_s == IDLE])[:gang].tolist()]
    heapq.heapify(highest)
    later = np.flatnonzero((delay_s > IDLE) & (delay_s < before_s) & (rates_per_s < -highest[0]))
    later = later[np.argsort(delay_s[later], kind="stable")]
    steps = []
    for one_s, rate in zip(delay_s[later].tolist(), rates_per_s[later].tolist(), strict=True):
        if rate < -highest[0]:
            heapq.heapreplace(highest, -rate)
            steps.append((one_s, float(np.sort(-np.array(highest)).sum())))
    return steps
