"""Failures and repairs from distributions, and these from what was traced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from presage.errors import ConfigError, TableError
from presage.schedulers.faults.fault import Fault, Outage, faults_of, outages_of
from presage.system.arrays import Array

MOST_FAILURES = 1_000_000  # of one drawing: a simulation of them takes minutes
_SHAPES = np.arange(0.2, 5.005, 0.01)  # that a fit chooses from


@dataclass(frozen=True, slots=True)
class FaultModel:
    """Each node by itself fails and is repaired by turns (an alternating renewal process).

    Attributes
    ----------
    mtbf_s : float
        Mean time from a repair to the next failure, Weibull-distributed.
    mttr_s : float
        Mean time to repair, lognormal.
    shape : float
        Of the Weibull distribution: 1 is exponential; below, failures come in bursts.
    spread : float
        Standard deviation of the logarithm of times to repair; at 0 all are equal.
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
        """Part of the time that a node is down, in the long run."""
        return self.mttr_s / (self.mtbf_s + self.mttr_s)

    def drawn(self, nodes: int, until_s: float, *, seed: int) -> tuple[Fault, ...]:
        """Failures before ``until_s`` and the repairs that follow, by time.

        The process is in its equilibrium from the start: a node is down at 0 as likely as ever
        after, and what is left until its first event is so distributed. (Were all nodes new at
        0, a ``shape`` below 1 would begin with a burst of failures.)

        Raises
        ------
        ConfigError
            About more than ``MOST_FAILURES`` would be drawn.
        """
        failures = nodes * until_s / (self.mtbf_s + self.mttr_s)
        if failures > MOST_FAILURES:
            raise ConfigError(
                f"about {failures:.3g} failures of {nodes:,} nodes in {until_s:,.0f} s, a mean of "
                f"{self.mtbf_s:.3g} s after each repair; at most {MOST_FAILURES:,} are drawn: let "
                "nodes fail less often"
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
        return faults_of(found)

    # A time that spans a moment is drawn with a chance in proportion to its length: "biased".

    def _up_s(self, rng: np.random.Generator, nodes: int, *, biased: bool = False) -> Array:
        hazard = rng.standard_gamma(1.0 + biased / self.shape, nodes)
        return _scale_s(self.mtbf_s, self.shape) * hazard ** (1.0 / self.shape)

    def _repair_s(self, rng: np.random.Generator, nodes: int, *, biased: bool = False) -> Array:
        variance = self.spread**2
        mean = math.log(self.mttr_s) + (variance if biased else 0.0) - variance / 2
        return rng.lognormal(mean, self.spread, nodes)


def fitted(faults: Sequence[Fault], nodes: int, until_s: float) -> FaultModel:
    """The model that faults of so many nodes in ``until_s`` seconds speak for.

    Means are ratios over all nodes: time up by failures, time down by repairs, so that the part
    of the time that nodes are down is the observed one. ``shape`` has the greatest likelihood,
    at that mean, of the times from repairs to the next failures and to the end (what is before a
    node's first failure began at an unknown time); ``spread`` is that of a lognormal
    distribution with the observed mean and median.

    Nodes are taken as alike. Where some fail more often than others, ``shape`` is below 1 for
    that, too.

    Raises
    ------
    TableError
        No node failed, or no repair took any time.
    """
    outages = sorted(outages_of(faults))
    repair_s = np.array([one.until_s - one.from_s for one in outages if one.until_s < math.inf])
    if not repair_s.any():
        raise TableError("no fault that took any time to repair; nothing to fit")
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
    """Logarithm of it, of Weibull times with a mean that are whole, or cut by the end."""
    scale_s = _scale_s(mean_s, shape)
    whole = whole_s / scale_s
    density = np.log(shape / scale_s) + (shape - 1.0) * np.log(whole) - whole**shape
    return float(density.sum() - ((cut_s / scale_s) ** shape).sum())


def _scale_s(mean_s: float, shape: float) -> float:
    return mean_s / math.gamma(1.0 + 1.0 / shape)
