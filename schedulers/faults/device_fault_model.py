"""Fault model of single devices: different, drifting and self-exciting rates; faults of nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from presage.errors import ConfigError
from presage.features.hazard.outage import Outage
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.faults.fault import Fault, outages_to_faults
from presage.schedulers.faults.fault_model import MOST_FAILURES
from presage.system.arrays import Array
from presage.system.text.known_names import did_you_mean

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class DeviceFaultModel:
    """Random faults of devices and nodes.

    Attributes
    ----------
    mtbf_s : float
        Mean uptime of a device between two outages, over all devices and all causes.
    mttr_s : float
        Mean time to repair, lognormally distributed.
    repair_spread : float
        Standard deviation of the logarithm of the time to repair.
    rate_spread : float
        Standard deviation of the logarithm of a device's rate, which is lognormal with mean 1; at 0
        all devices are alike.
    rates : tuple of float
        Relative rates of the devices in place of drawn ones; their mean counts as 1.
    drift_s : float
        Mean time after which the rate of a device is drawn again; infinite for never.
    follow_ups : float
        Mean number of failures that a repair causes (recency).
    half_life_s : float
        Half-life of that additional hazard.
    node_share : float
        Fraction of a device's outages that are outages of its whole node.
    """

    mtbf_s: float
    mttr_s: float
    repair_spread: float = 0.0
    rate_spread: float = 0.0
    rates: tuple[float, ...] = ()
    drift_s: float = math.inf
    follow_ups: float = 0.0
    half_life_s: float = 7 * DAY_S
    node_share: float = 0.0

    def __post_init__(self) -> None:
        finite = "a finite number > 0"
        for field, is_valid, must_be in (
            ("mtbf_s", 0 < self.mtbf_s < math.inf, finite),
            ("mttr_s", 0 < self.mttr_s < math.inf, finite),
            ("half_life_s", 0 < self.half_life_s < math.inf, finite),
            ("repair_spread", 0 <= self.repair_spread < math.inf, "a finite number >= 0"),
            ("rate_spread", 0 <= self.rate_spread <= 10, "within 0 and 10"),
            ("drift_s", self.drift_s > 0, "a number > 0"),
            ("follow_ups", 0 <= self.follow_ups <= 0.95, "within 0 and 0.95"),
            ("node_share", 0 <= self.node_share <= 1, "within 0 and 1"),
        ):
            if not is_valid:
                raise ConfigError(f"{field}={getattr(self, field)}, must be {must_be}")
        for number, rate in enumerate(self.rates):
            if not 0 < rate < math.inf:
                raise ConfigError(f"rate of device {number}: {rate}, must be {finite}")
        if self.rates and self.drift_s < math.inf:
            raise ConfigError("given rates do not drift; leave out drift_s or the rates")

    def device_rates(self, devices: int, *, seed: int) -> Array:
        """Return the relative rates at 0 s that :meth:`draw` uses, of shape (devices,).

        Raises
        ------
        ConfigError
            There are given rates, and not one for each device.
        """
        if not self.rates:
            return np.array([self._rate(_rng(seed, device)) for device in range(devices)])
        if len(self.rates) != devices:
            raise ConfigError(
                f"{len(self.rates)} rates for {devices} devices; give one for each device"
            )
        given: Array = np.array(self.rates)
        given /= given.mean()
        return given

    def draw(self, cluster: Cluster, until_s: float, *, seed: int) -> tuple[Fault, ...]:
        """Draw the failures before ``until_s`` and the repairs that follow, by time.

        At 0 s all devices are up, with no earlier repairs. Each device and each node has random
        numbers of its own.

        Raises
        ------
        ConfigError
            The expected number of failures exceeds ``MOST_FAILURES``, or the number of rates is
            wrong.
        """
        failures = cluster.devices * until_s / (self.mtbf_s + self.mttr_s)
        if failures > MOST_FAILURES:
            raise ConfigError(
                f"about {failures:.3g} failures of {cluster.devices:,} devices in {until_s:,.0f} "
                f"s; at most {MOST_FAILURES:,} are drawn; increase the MTBF"
            )
        rates = self.device_rates(cluster.devices, seed=seed)
        base = (1 - self.node_share) / self.mtbf_s
        found = [
            Outage(cluster.node_of[device], from_s, to_s, device)
            for device in range(cluster.devices)
            for from_s, to_s in self._outages(seed, device, base, float(rates[device]), until_s)
        ]
        for node in range(len(cluster.nodes)):
            base, stream = self.node_share / self.mtbf_s, cluster.devices + node
            found += [
                Outage(node, from_s, to_s)
                for from_s, to_s in self._outages(seed, stream, base, 1.0, until_s, drifts=False)
            ]
        return outages_to_faults(found)

    def _outages(
        self,
        seed: int,
        stream: int,
        per_s: float,
        rate: float,
        until_s: float,
        *,
        drifts: bool = True,
    ) -> list[tuple[float, float]]:
        """Return the outages of a unit that fails ``per_s * rate`` times a second of uptime."""
        rng = _rng(seed, stream)
        if not self.rates and drifts:
            self._rate(rng)  # the rate at 0 s, which was drawn before
        drifts = drifts and self.drift_s < math.inf
        now_s, found = 0.0, list[tuple[float, float]]()
        caused: list[float] = []  # times of failures that earlier repairs cause
        drift_s = rng.exponential(self.drift_s) if drifts else math.inf
        base_per_s = per_s * (1 - self.follow_ups)
        while True:
            wait_s = rng.exponential() / (base_per_s * rate) if base_per_s else math.inf
            next_s = min([now_s + wait_s, *caused])
            if drift_s < next_s and drift_s < until_s:
                now_s, rate = drift_s, self._rate(rng)
                drift_s += rng.exponential(self.drift_s)
                caused = [at_s for at_s in caused if at_s > now_s]
                continue
            if next_s >= until_s:
                return found
            now_s = next_s + self._repair_s(rng)
            found.append((next_s, now_s))
            count = rng.poisson(self.follow_ups)
            caused += (now_s + rng.exponential(self.half_life_s / math.log(2), count)).tolist()
            caused = [at_s for at_s in caused if at_s > now_s]

    def _rate(self, rng: np.random.Generator) -> float:
        return float(rng.lognormal(-(self.rate_spread**2) / 2, self.rate_spread))

    def _repair_s(self, rng: np.random.Generator) -> float:
        center = math.log(self.mttr_s) - self.repair_spread**2 / 2
        return float(rng.lognormal(center, self.repair_spread))


# Names in texts such as "mtbf=30,mttr=0.5", with the field and its unit in seconds.
_FIELDS = {
    "mtbf": ("mtbf_s", DAY_S),
    "mttr": ("mttr_s", DAY_S),
    "repair_spread": ("repair_spread", 1.0),
    "rate_spread": ("rate_spread", 1.0),
    "drift": ("drift_s", DAY_S),
    "follow_ups": ("follow_ups", 1.0),
    "half_life": ("half_life_s", DAY_S),
    "node_share": ("node_share", 1.0),
}
assert {name for name, _ in _FIELDS.values()} | {"rates"} == {
    one.name for one in fields(DeviceFaultModel)
}


def parse_device_faults(text: str) -> DeviceFaultModel:
    """Parse a text such as "mtbf=30,mttr=0.5,rate_spread=1"; times are in days.

    Raises
    ------
    ConfigError
        A name is unknown or missing, or a value is invalid.
    """
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (one.strip() for one in part.partition("="))
        if name not in _FIELDS:
            raise ConfigError(f"faults: {name!r} is unknown; {did_you_mean(name, _FIELDS)}")
        field, unit = _FIELDS[name]
        try:
            values[field] = float(value) * unit
        except ValueError:
            raise ConfigError(f"faults: {name}={value!r}, must be a number") from None
    for name in ("mtbf", "mttr"):
        if _FIELDS[name][0] not in values:
            raise ConfigError(f"faults: {name} is missing; give it in days, such as {name}=30")
    return DeviceFaultModel(**values)  # type: ignore[arg-type]


def _rng(seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, stream])
