"""Prior deviations of the offsets of each quantity, for the server."""

from __future__ import annotations

from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import (
    COMPUTE_UTILIZATION,
    INTERFERENCE,
    MEMORY,
    STEP_TIME,
)
from presage.models.offsets.random_effects import Spread
from presage.models.offsets.spread_fit import NOISE
from presage.models.offsets.terms import (
    AGGRESSOR,
    AGGRESSOR_ON,
    BOUND,
    DEVICE,
    JOB,
    PRECISION,
    VICTIM,
    VICTIM_ON,
)

# Step times and slowdowns: estimates on public tables (docs/benchmarks/first_runs.md), rounded. Of
# memory and utilization, no table has several devices: assumed.
SPREADS = {
    STEP_TIME.name: Spread(
        {DEVICE: 0.12, PRECISION: 0.15, BOUND: 0.04, JOB: 0.05}, cell=0.14, noise=NOISE
    ),
    MEMORY.name: Spread({DEVICE: 0.05, PRECISION: 0.03, JOB: 0.05}, cell=0.05, noise=0.01),
    COMPUTE_UTILIZATION.name: Spread({DEVICE: 0.2, PRECISION: 0.1, JOB: 0.2}, cell=0.2, noise=0.05),
    INTERFERENCE.name: Spread(
        {DEVICE: 0.03, VICTIM: 0.03, VICTIM_ON: 0.15, AGGRESSOR: 0.05, AGGRESSOR_ON: 0.1},
        cell=0.15,
        noise=NOISE,
    ),
}


def spread_of(quantity: Quantity) -> Spread:
    """Return the deviations of a quantity; those of the step time for a further one."""
    return SPREADS.get(quantity.name, SPREADS[STEP_TIME.name])
