"""Quotas of users: the devices that each may hold at once, and its weight for fair share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from presage.errors import ConfigError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.job import Job

MAX_DEVICES, MAX_WEIGHT = 1e6, 1e6
MAX_NAME_LENGTH = 128
DEFAULT = ""  # name of the quota of users without one


@dataclass(frozen=True, slots=True)
class Quota:
    """Quota of a user.

    Attributes
    ----------
    devices : float or None
        Devices that the user's jobs may hold at the same time; parts of devices count as such. None
        for the default of the cluster, which is no limit unless it is set.
    weight : float or None
        Weight for fair share; None for the default of the cluster, which is 1 unless it is set.

    Raises
    ------
    ConfigError
        A number is not finite, negative or too large, or a weight is 0.
    """

    devices: float | None = None
    weight: float | None = None

    def __post_init__(self) -> None:
        if self.devices is not None and not 0 <= self.devices <= MAX_DEVICES:
            raise ConfigError(
                f"quota of {self.devices:g} devices: must be within 0 and {MAX_DEVICES:,.0f}; "
                "remove the quota for no limit"
            )
        if self.weight is not None and not 1 / MAX_WEIGHT <= self.weight <= MAX_WEIGHT:
            raise ConfigError(
                f"weight {self.weight:g}: must be within {1 / MAX_WEIGHT:f} and {MAX_WEIGHT:,.0f}; "
                "a quota of 0 devices keeps a user from running jobs"
            )


@dataclass(frozen=True, slots=True)
class Quotas:
    """Quotas of all users of a cluster.

    Attributes
    ----------
    of_user : mapping of str to Quota
        Quotas by the name of the user; that of the name "" is the default for all others. Jobs
        without a user have no quota.
    """

    of_user: Mapping[str, Quota] = field(default_factory=dict)

    def devices_milli(self, user: str) -> int | None:
        """Return how much a user may hold, in thousandths of a device; None for no limit."""
        devices = self._value(user, "devices") if user else None
        return None if devices is None else math.floor(devices * FULL_DEVICE_MILLI + 1e-6)

    def weight(self, user: str) -> float:
        """Return the weight of a user."""
        weight = self._value(user, "weight")
        return 1.0 if weight is None else weight

    @property
    def has_limits(self) -> bool:
        """Whether there is a limit for any user."""
        return any(quota.devices is not None for quota in self.of_user.values())

    def _value(self, user: str, name: str) -> float | None:
        for one in (user, DEFAULT):
            value: float | None = getattr(self.of_user.get(one), name, None)
            if value is not None:
                return value
        return None


NO_QUOTAS = Quotas()


def why_never(job: Job, least_milli: int, quotas: Quotas) -> str:
    """Return why a job needs more than its user may ever hold; "" if it does not.

    Parameters
    ----------
    least_milli : int
        Least compute that the job gets of all of its devices, in thousandths of a device.
    """
    limit = quotas.devices_milli(job.user)
    if limit is None or least_milli <= limit:
        return ""
    return (
        f"it needs {devices_text(least_milli)} at once, and the quota of user {job.user!r} is "
        f"{devices_text(limit)}; request fewer, or ask an administrator for a larger quota"
    )


def least_milli(job: Job, allocation: str) -> int:
    """Return the least compute that a job gets of all of its devices, whatever is predicted.

    ``allocation`` is as in :class:`presage.schedulers.core.policy.PolicyNeeds`.
    """
    if allocation == "requested":
        return job.fewest_gpus * job.compute_milli
    is_shared = allocation == "predicted" and job.fewest_gpus == 1
    return 1 if is_shared else job.fewest_gpus * FULL_DEVICE_MILLI


def devices_text(milli: int) -> str:
    """Return an amount of compute as a number of devices: "1 device", "2.5 devices"."""
    return f"{milli / FULL_DEVICE_MILLI:g} device{'' if milli == FULL_DEVICE_MILLI else 's'}"


def check_user_name(user: str) -> None:
    """Raise a ConfigError unless a text can be the name of a user."""
    if not user or len(user) > MAX_NAME_LENGTH or not user.isprintable():
        raise ConfigError(
            f"user {user[:16]!r}: the name must be 1 to {MAX_NAME_LENGTH} printable characters"
        )
