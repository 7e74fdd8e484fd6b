"""Other features of the outage history, in a Poisson regression with a logarithmic link."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.linear_model import PoissonRegressor

from presage.features.hazard.fault_trace import FaultTrace
from presage.features.hazard.hazard_model import DAY_S
from presage.features.hazard.outage_features import outage_features
from presage.models.hazard.hazard_score import log_losses, share_in_top
from presage.models.hazard.unit_days import UnitDays
from presage.system.arrays import Array, Ints, Mask, Matrix

HALF_LIVES_DAYS = (3.0, 14.0)
COLUMNS: dict[str, Sequence[str]] = {
    "lifetime failures": ["failures"],
    "age of the cluster": ["age"],
    "length of the last repair": ["repair"],
    "time since the last repair": ["recency"],
    "repairs, half-life 14 days": ["decayed"],
    "time since repair, decayed repairs": ["recency", "decayed"],
    "the same and the length of the repair": ["recency", "decayed", "repair"],
    "the same and lifetime failures": ["recency", "decayed", "repair", "failures"],
    "the same and recent failures of all nodes": [
        "recency", "decayed", "repair", "failures", "cluster",
    ],
}  # fmt: skip


def feature_table(trace: FaultTrace, rows: UnitDays) -> dict[str, Array]:
    """Return the columns of the alternatives, each of shape (rows,)."""
    spans: list[list[tuple[float, float]]] = [[] for _ in range(trace.nodes)]
    for one in trace.outages:
        spans[one.node].append((one.from_s, one.until_s))
    lives_s = [days * DAY_S for days in HALF_LIVES_DAYS]
    found = [
        outage_features(spans[unit], day * DAY_S, lives_s)
        for unit, day in zip(rows.unit.tolist(), rows.day.tolist(), strict=True)
    ]
    starts = np.sort([one.from_s for one in trace.outages]) / DAY_S
    recent = np.array([np.sum((starts <= day) & (starts > day - 7)) for day in range(trace.days)])
    since_days = np.array([one.since_repair_s for one in found]) / DAY_S
    return {
        "failures": np.log1p([one.failures for one in found]),
        "age": rows.day / 100.0,
        "repair": np.log1p([one.repair_s / DAY_S for one in found]),
        "recency": 0.5 ** (since_days / 3.0),
        "decayed": np.log1p([one.decayed_repairs[1] for one in found]),
        "cluster": np.log1p(recent[rows.day]),
    }


def score_alternative(
    columns: Sequence[str],
    training: tuple[UnitDays, dict[str, Array]],
    test: tuple[UnitDays, dict[str, Array]],
    fold: Ints,
) -> tuple[float, float, float]:
    """Return the log loss on nodes left out, that after training, and the share in the top 5 %."""
    rows, table = training
    x, total = _matrix(columns, table), 0.0
    for held_out in np.unique(fold):
        out = fold == held_out
        total += float(
            log_losses(rows.fails[out], _chance(x[~out], rows.fails[~out], x[out])).sum()
        )
    chance = _chance(x, rows.fails, _matrix(columns, test[1]))
    fails = test[0].fails
    loss = float(log_losses(fails, chance).mean())
    return total / len(rows), loss, share_in_top(fails, chance, 0.05)


def _matrix(columns: Sequence[str], table: dict[str, Array]) -> Matrix:
    return np.stack([table[name] for name in columns], axis=1)


def _chance(x: Matrix, fails: Mask, of: Matrix) -> Array:
    fitted = PoissonRegressor(alpha=1e-6, max_iter=1000).fit(x, fails)
    chance: Array = -np.expm1(-fitted.predict(of))
    return chance
