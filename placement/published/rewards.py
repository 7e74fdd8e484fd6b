"""Rewards of the published policy (L5, L6)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from presage.placement.core.batches import Batches
from presage.placement.core.clusters import makespans_s
from presage.placement.core.rules import RULES, run_rule
from presage.system.arrays import Array

RewardKind = Literal["saved", "speedup", "saved_over_rl"]


def reward(kind: RewardKind, random_s: float, rl_s: float) -> float:
    """Return the reward of a placement (L6).

    Parameters
    ----------
    kind : str
        ``saved``: (T_random - T_rl) / T_random; ``speedup``: T_random / T_rl; ``saved_over_rl``:
        (T_random - T_rl) / T_rl.
    random_s, rl_s : float
        Makespan of the best random placement and of the policy's.
    """
    if kind == "saved":
        return (random_s - rl_s) / random_s
    return random_s / rl_s if kind == "speedup" else (random_s - rl_s) / rl_s


def random_makespans_s(batches: Batches, placements: int, *, seed: int) -> Array:
    """Return the smallest makespan of several random placements of each batch (L5)."""
    found: Array = np.min(
        [
            makespans_s(run_rule(batches, RULES["random"], seed=seed * 1000 + i))
            for i in range(placements)
        ],
        axis=0,
    )
    return found
