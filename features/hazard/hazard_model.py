"""Hazard model: probability that a node or device fails within a time, from its past repairs.

A unit fails at a base rate. Each repair adds a hazard that decays, since many repairs do not remove
the cause: a self-exciting point process (Hawkes, Biometrika 1971). The decay is a mean of
exponentials with several half-lives, so it has a fast and a slow part. The probability of the first
failure within any time has a closed form; its interval comes from bootstrap draws of the fit.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from presage.errors import ConfigError
from presage.features.hazard.outage_features import check_half_lives
from presage.system.arrays import Array, Matrix

DAY_S = 86_400.0
SCHEMA = 1
INTERVAL = (0.1, 0.9)  # quantiles of the draws, as of the other forecasts


class Hazards(NamedTuple):
    """Probabilities of failure of several units, with their intervals; shape (units,)."""

    probability: Array
    low: Array
    high: Array


@dataclass(frozen=True, slots=True)
class HazardModel:
    """Fitted hazard of a kind of unit, such as a node.

    Attributes
    ----------
    base_per_day : float
        Failures of a unit in a day of uptime, apart from those that follow a repair.
    follow_ups : float
        Mean number of failures that a repair causes, over all time.
    half_lives_days : tuple of float
        Half-lives of the added hazard; each accounts for an equal part of ``follow_ups``.
    draws : tuple of (float, float)
        Bootstrap draws of ``base_per_day`` and ``follow_ups``.
    level_failures : float
        Weight of ``base_per_day`` in another cluster, as a number of failures: after as many
        failures there, half of the base rate is that of the cluster itself.
    units, days, failures : float
        Size of the training data.
    """

    base_per_day: float
    follow_ups: float
    half_lives_days: tuple[float, ...]
    draws: tuple[tuple[float, float], ...] = ()
    level_failures: float = 10.0
    units: int = 0
    days: float = 0.0
    failures: int = 0

    def __post_init__(self) -> None:
        check_half_lives([days * DAY_S for days in self.half_lives_days])
        rates = [(self.base_per_day, self.follow_ups), *self.draws]
        for base, follow_ups in rates:
            if not (math.isfinite(base) and base > 0):
                raise ConfigError(f"hazard model: base_per_day={base}, must be a finite number > 0")
            if not 0 <= follow_ups < 1:
                raise ConfigError(
                    f"hazard model: follow_ups={follow_ups}, must be within 0 and 1; at 1 each "
                    "failure would cause another one for ever"
                )
        if not (math.isfinite(self.level_failures) and self.level_failures > 0):
            raise ConfigError(
                f"hazard model: level_failures={self.level_failures}, must be a finite number > 0"
            )

    @property
    def half_lives_s(self) -> Array:
        """Half-lives in seconds, of shape (half-lives,)."""
        return np.array(self.half_lives_days) * DAY_S

    def added_failures(self, decayed_repairs: Matrix, within_s: float) -> Array:
        """Return the expected failures that past repairs cause, over ``follow_ups``.

        Parameters
        ----------
        decayed_repairs : ndarray of shape (units, half-lives)
            As in :class:`presage.features.hazard.outage_features.OutageFeatures`.
        within_s : float
            Time from now on; infinite for all time.

        Returns
        -------
        ndarray of shape (units,)
        """
        if not self.half_lives_days:
            return np.zeros(len(decayed_repairs))
        passed = 1.0 - 0.5 ** (within_s / self.half_lives_s)
        return decayed_repairs @ passed / len(passed)

    def hazards(
        self, decayed_repairs: Matrix, within_s: float, *, level: float | Array = 1.0
    ) -> Hazards:
        """Return the probabilities that units which are up fail within a time.

        Parameters
        ----------
        decayed_repairs : ndarray of shape (units, half-lives)
        within_s : float
            Seconds of uptime from now on; infinite and NaN give 1, negative times 0.
        level : float or ndarray of shape (units,)
            Factor of the base rate, such as that of :meth:`level`.
        """
        added, days = self._parts(decayed_repairs, within_s, level)
        draws = np.array([(self.base_per_day, self.follow_ups), *self.draws])
        expected = draws[:, :1] * days + draws[:, 1:] * added  # (1 + draws, units)
        chance = -np.expm1(-expected)
        low, high = np.quantile(chance, INTERVAL, axis=0)
        return Hazards(chance[0], np.minimum(low, chance[0]), np.maximum(high, chance[0]))

    def probabilities(
        self, decayed_repairs: Matrix, within_s: float, *, level: float | Array = 1.0
    ) -> Array:
        """Return only the probabilities of :meth:`hazards`, which is faster."""
        added, days = self._parts(decayed_repairs, within_s, level)
        chance: Array = -np.expm1(-(self.base_per_day * days + self.follow_ups * added))
        return chance

    def _parts(
        self, decayed_repairs: Matrix, within_s: float, level: float | Array
    ) -> tuple[Array, Array]:
        """Return the factors of the follow-ups and of the base rate, of shape (units,)."""
        within_s = math.inf if math.isnan(within_s) else max(0.0, within_s)
        added = self.added_failures(decayed_repairs, within_s)
        return added, within_s / DAY_S * np.broadcast_to(np.asarray(level, float), added.shape)

    def added_rate_per_day(self, decayed_repairs: Matrix) -> Array:
        """Return the hazard that past repairs add now, per day, of shape (units,)."""
        if not self.half_lives_days:
            return np.zeros(len(decayed_repairs))
        weights = math.log(2) / np.array(self.half_lives_days) / len(self.half_lives_days)
        rates: Array = self.follow_ups * (decayed_repairs @ weights)
        return rates

    def level(self, failures: float, unit_days: float) -> float:
        """Return the factor of the base rate in a cluster, from what happened there so far.

        It is the posterior mean of a gamma distribution with mean 1 and shape ``level_failures``.

        Parameters
        ----------
        failures : float
            Failures in the cluster that no earlier repair explains.
        unit_days : float
            Uptime of its units.
        """
        expected = self.base_per_day * max(0.0, unit_days)
        return (self.level_failures + max(0.0, failures)) / (self.level_failures + expected)

    def as_json(self) -> dict[str, Any]:
        """Return the model as a JSON object, with a digest of its content."""
        content = json.loads(json.dumps({"schema": SCHEMA, **asdict(self)}))
        return {**content, "sha256": _digest(content)}


def parse_hazard_model(text: str, *, source: str = "hazard model") -> HazardModel:
    """Parse the JSON text of a model.

    Raises
    ------
    ConfigError
        The text is no such model, has another schema, or does not match its digest.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: is not JSON ({' '.join(str(error).split())})") from None
    names = {one.name for one in fields(HazardModel)}
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else None
        raise ConfigError(
            f"{source}: has schema {found!r}, must be {SCHEMA}; fit it with `dvc repro hazard`"
        )
    digest = content.pop("sha256", None)
    if digest != _digest(content):
        raise ConfigError(f"{source}: its digest differs from its content; fit or copy it again")
    if content.keys() != names | {"schema"}:
        wrong = sorted(content.keys() ^ (names | {"schema"}))
        raise ConfigError(f"{source}: {wrong[0]!r} is missing or unknown")
    return _from_json(content, source)


def _from_json(content: Mapping[str, Any], source: str) -> HazardModel:
    try:
        return HazardModel(
            base_per_day=float(content["base_per_day"]),
            follow_ups=float(content["follow_ups"]),
            half_lives_days=_floats(content["half_lives_days"]),
            draws=tuple((float(base), float(added)) for base, added in content["draws"]),
            level_failures=float(content["level_failures"]),
            units=int(content["units"]),
            days=float(content["days"]),
            failures=int(content["failures"]),
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source}: {' '.join(str(error).split())}") from None


def _floats(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
