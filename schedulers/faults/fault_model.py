"""Fault model: random failures and repairs, and its parameters fitted to a fault trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from presage.errors import ConfigError, TableError
from presage.features.hazard.outage import Outage
from presage.schedulers.faults.fault import Fault, faults_to_outages, outages_to_faults
from presage.system.arrays import Array

MOST_FAILURES = 1_000_000  # in one draw: their simulation takes minutes
_SHAPES = np.arange(0.2, 5.005, 0.01)  # candidates of a fit


@dataclass(frozen=True, slots=True)
class FaultModel:
    """Independent alternating renewal process of failures and repairs for each node.

    Attributes
    ----------
    mtbf_s : float
        Mean time from a repair to the next failure, Weibull-distributed.
    mttr_s : float
        Mean time to repair, lognormally distributed.
    shape : float
        Shape of the Weibull distribution: 1 is exponential; below 1, failures occur in bursts.
    spread : float
        Standard deviation of the logarithm of the time to repair; at 0 all times are equal.
    """

    mtbf_s: float
    mttr_s: float
    shape: float = 1.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        for field in ("mtbf_s", "mttr_s", "shape"):
            if not (math.isfinite(getattr(self, field)) and getattr(self, field) > 0):
                raise ConfigError(f"{field}={getattr(self, field)}, must be a finite number > 0")
        if not (math.isfinite(self.spread) and self.spread >= 0):
            raise ConfigError(f"spread={self.spread}, must be a finite number >= 0")

    @property
    def down(self) -> float:
        """Long-run fraction of time in which a node is down."""
        return self.mttr_s / (self.mtbf_s + self.mttr_s)

    def draw(self, nodes: int, until_s: float, *, seed: int) -> tuple[Fault, ...]:
        """Draw the failures before ``until_s`` and the repairs that follow, by time.

        The process starts in equilibrium: a node is down at 0 with the long-run probability, and
        the time to its first event has the residual distribution. If all nodes were new at 0, a
        ``shape`` below 1 would start with a burst of failures.

        Raises
        ------
        ConfigError
            The expected number of failures exceeds ``MOST_FAILURES``.
        """
        failures = nodes * until_s / (self.mtbf_s + self.mttr_s)
        if failures > MOST_FAILURES:
            raise ConfigError(
                f"about {failures:.3g} failures of {nodes:,} nodes in {until_s:,.0f} s, a mean of "
                f"{self.mtbf_s:.3g} s after each repair; at most {MOST_FAILURES:,} are drawn; "
                "increase the MTBF"
            )
        rng = np.random.default_rng(seed)
        up = rng.random(nodes) >= self.down
        fails_s = np.where(up, rng.random(nodes) * self._up_s(rng, nodes, biased=True), 0.0)
        left_s = rng.random(nodes) * self._repair_s(rng, nodes, biased=True)
        repaired_s = np.where(up, fails_s + self._repair_s(rng, nodes), left_s)
        found: list[Outage] = []
        while (fails_s < until_s).any():
            found += [
                Outage(node, float(fails_s[node]), float(repaired_s[node]))
                for node in np.flatnonzero(fails_s < until_s).tolist()
            ]
            fails_s = repaired_s + self._up_s(rng, nodes)
            repaired_s = fails_s + self._repair_s(rng, nodes)
        return outages_to_faults(found)

    # "biased": the time that spans a given moment is drawn in proportion to its length.

    def _up_s(self, rng: np.random.Generator, nodes: int, *, biased: bool = False) -> Array:
        hazard = rng.standard_gamma(1.0 + biased / self.shape, nodes)
        return _scale_s(self.mtbf_s, self.shape) * hazard ** (1.0 / self.shape)

    def _repair_s(self, rng: np.random.Generator, nodes: int, *, biased: bool = False) -> Array:
        variance = self.spread**2
        mean = math.log(self.mttr_s) + (variance if biased else 0.0) - variance / 2
        return rng.lognormal(mean, self.spread, nodes)


def fit_fault_model(faults: Sequence[Fault], nodes: int, until_s: float) -> FaultModel:
    """Fit a model to the faults of ``nodes`` nodes in ``until_s`` seconds.

    Means are ratios over all nodes: time up over failures, time down over repairs. The fraction of
    time in which nodes are down is thus the observed one. ``shape`` maximizes the likelihood, at
    that mean, of the times from repairs to the next failures and to the end; times before a node's
    first failure have an unknown start and are not used. ``spread`` is that of a lognormal
    distribution with the observed mean and median.

    Nodes are assumed to be identical. If some fail more often than others, this also lowers
    ``shape`` below 1.

    Raises
    ------
    TableError
        No node failed, or all repairs took zero time.
    """
    outages = sorted(faults_to_outages(faults))
    repair_s = np.array([one.until_s - one.from_s for one in outages if one.until_s < math.inf])
    if not repair_s.any():
        raise TableError("no fault has a repair time above 0; nothing to fit")
    down_s = sum(min(one.until_s, until_s) - one.from_s for one in outages)
    mtbf_s = (nodes * until_s - down_s) / len(outages)
    between = [b.from_s - a.until_s for a, b in pairwise(outages) if a.node == b.node]
    last = {one.node: one.until_s for one in outages}
    whole_s = np.array(between)
    cut_s = np.array([until_s - repaired_s for repaired_s in last.values() if repaired_s < until_s])
    shape = max(_SHAPES.tolist(), key=lambda one: _likelihood(one, mtbf_s, whole_s, cut_s))
    mttr_s = float(repair_s.mean())
    median_s = float(np.median(repair_s[repair_s > 0]))
    spread = math.sqrt(2 * math.log(max(1.0, mttr_s / median_s)))
    return FaultModel(mtbf_s, mttr_s, round(shape, 2) if between else 1.0, spread)


def _likelihood(shape: float, mean_s: float, whole_s: Array, cut_s: Array) -> float:
    """Return the log-likelihood of complete and right-censored Weibull times with a given mean."""
    scale_s = _scale_s(mean_s, shape)
    whole = whole_s / scale_s
    density = np.log(shape / scale_s) + (shape - 1.0) * np.log(whole) - whole**shape
    return float(density.sum() - ((cut_s / scale_s) ** shape).sum())


def _scale_s(mean_s: float, shape: float) -> float:
    return mean_s / math.gamma(1.0 + 1.0 / shape)
