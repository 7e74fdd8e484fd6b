"""Step-time law of data-parallel training: properties that hold for any constants."""

import numpy as np
import pytest
import torch

from presage.features.device.node_spread import spread
from presage.models.networks.scale_out_law import StepTimeLaw, fit_step_times, ring_bytes

SPREADS = [spread(1, 1, "1"), spread(1, 2, "2"), spread(2, 2, "1 1"), spread(4, 8, "2 2 2 2")]


def seconds(compute_s, gradient_bytes, spreads):
    law = StepTimeLaw(1, 1)
    links = torch.tensor([(one.nodes, one.widest, one.devices) for one in spreads]).float()
    ring = torch.tensor(ring_bytes(np.full(len(spreads), gradient_bytes), spreads)).float()
    compute = torch.full((1, len(spreads)), compute_s)
    with torch.no_grad():
        return law(compute, ring, links, torch.zeros(len(spreads), dtype=torch.long))[0].exp()


def test_a_single_device_has_no_synchronization_time():
    assert seconds(0.5, 1e9, SPREADS[:1])[0] == pytest.approx(0.5, rel=1e-4)


def test_synchronization_time_grows_with_bytes():
    small, large = seconds(0.5, 1e6, SPREADS), seconds(0.5, 1e9, SPREADS)

    assert (small[1:] > 0.5).all()
    assert (large[1:] > small[1:]).all()


def test_a_ring_moves_almost_twice_the_gradients():
    assert list(ring_bytes(np.full(4, 8.0), SPREADS)) == [0, 8, 8, 14]


def known_steps(rng, rows=300):
    """Return steps by a law with 2 GB/s between nodes and no overlap."""
    spreads = [SPREADS[i] for i in rng.integers(0, 4, rows)]
    compute_s, gradients = rng.uniform(0.05, 0.5, rows), rng.uniform(1e7, 5e8, rows)
    rate = np.array([2e9 if one.nodes > 1 else 2e10 for one in spreads])
    return compute_s, gradients, spreads, compute_s + ring_bytes(gradients, spreads) / rate


def test_fitting_recovers_the_constants():
    compute_s, gradients, spreads, steps = known_steps(np.random.default_rng(0))

    found = fit_step_times(
        compute_s[None], gradients, spreads, ["job"] * 300, steps, np.ones((1, 300))
    )

    assert np.median(np.abs(found[0] / steps - 1)) < 0.03


def test_hidden_rows_do_not_affect_a_member_of_the_law():
    compute_s, gradients, spreads, steps = known_steps(np.random.default_rng(0), rows=60)
    weights = np.ones((1, 60))
    weights[0, 40:] = 0
    other = np.where(np.arange(60) >= 40, 7 * steps, steps)

    first, again = (
        fit_step_times(compute_s[None], gradients, spreads, ["job"] * 60, y, weights)
        for y in (steps, other)
    )

    assert (first == again).all()
