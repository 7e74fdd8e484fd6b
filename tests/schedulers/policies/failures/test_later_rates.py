"""Rates of the devices that a gang could have later: as found by choosing after each release."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.policies.failures.device_order import choose_devices
from presage.schedulers.policies.failures.later_rates import IDLE, NEVER, later_rates
from tests.schedulers.clusters import cluster, job


def chosen_rates(gang, delay_s, rates, nodes):
    """Return the delay and the rate of the chosen devices after each release, one by one."""
    usable, found = delay_s == IDLE, []
    for device in np.argsort(delay_s, kind="stable"):
        if IDLE < delay_s[device] < np.inf:
            usable[device] = True
            devices = choose_devices(job("a", gpus=gang), gang, usable, rates, nodes)
            found.append((delay_s[device], rates[devices].sum()))
    return found


def rate_at(steps, delay_s):
    """Return the rate of the last step until a time."""
    return [rate for one_s, rate in steps if one_s <= delay_s][-1]


@st.composite
def clusters(draw):
    """Return a gang, delays with enough idle devices, rates and a cluster."""
    nodes = cluster(*draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    devices = nodes.devices
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    delay_s = rng.permutation(devices).astype(float)
    delay_s[rng.random(devices) < 0.5] = IDLE
    delay_s[rng.random(devices) < 0.2] = np.inf
    idle = np.flatnonzero(delay_s == IDLE)
    if not len(idle):
        delay_s[0], idle = IDLE, np.array([0])
    rates = rng.choice([0.0, 1e-6, 2e-6, 5e-6, 1e-4], devices)
    return draw(st.integers(1, len(idle))), delay_s, rates, nodes


@given(clusters())
def test_steps_are_those_of_choosing_after_each_release(drawn):
    gang, delay_s, rates, nodes = drawn
    now = choose_devices(job("a", gpus=gang), gang, delay_s == IDLE, rates, nodes)
    later = later_rates(gang, rates[now].sum(), delay_s, rates, nodes)
    expected = chosen_rates(gang, delay_s, rates, nodes)
    if not expected:
        assert later == NEVER
        return
    assert [one_s for one_s, _ in later.steps] == sorted(one_s for one_s, _ in later.steps)
    assert later.steps[0][0] == expected[0][0]
    for one_s, rate in expected:
        assert rate_at(later.steps, one_s) == pytest.approx(rate)
    assert later.least_per_s == min(rate for _, rate in later.steps)


def test_a_gang_on_several_nodes_moves_to_one_node_even_if_its_devices_fail_more():
    nodes = cluster(2, 2)
    rates = np.array([1e-6, 8e-6, 1e-6, 8e-6])
    delay_s = np.array([IDLE, 30.0, IDLE, 60.0])
    later = later_rates(2, 2e-6, delay_s, rates, nodes)
    assert later.steps == [(30.0, 9e-6)]
