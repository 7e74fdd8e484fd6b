"""Past use of devices by users, in which older use counts less."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.users.quota import Quotas

HALF_LIFE_S = 7 * 86_400.0  # default of Slurm, too


class UserUse(NamedTuple):
    """Use of one user.

    Attributes
    ----------
    device_s : float
        Decayed device-seconds at ``since_s``.
    since_s : float
        Time from which on the user holds ``held_milli``.
    held_milli : int
        Compute that the user's jobs hold, in thousandths of a device.
    """

    device_s: float = 0.0
    since_s: float = 0.0
    held_milli: int = 0


class DecayedUse:
    """Decayed device-seconds of each user.

    A device-second counts half after each half-life. While a user holds h devices from time s on,
    the use at time t with the half-life H is

        u(t) = u(s) * 2^(-(t - s) / H) + h * H / ln 2 * (1 - 2^(-(t - s) / H)).

    It is the exact integral, so it does not depend on how often it is updated.

    Attributes
    ----------
    users : dict of str to UserUse
        Users that have held devices.

    References
    ----------
    Slurm: Multifactor Priority Plugin, PriorityDecayHalfLife,
    https://slurm.schedmd.com/priority_multifactor.html. Slurm adds and decays use at intervals.
    """

    def __init__(
        self, half_life_s: float = HALF_LIFE_S, users: Mapping[str, UserUse] | None = None
    ) -> None:
        self.half_life_s = half_life_s
        self.users = dict(users or {})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecayedUse):
            return NotImplemented
        return (self.half_life_s, self.users) == (other.half_life_s, other.users)

    __hash__ = None  # type: ignore[assignment]

    def set_held(self, user: str, held_milli: int, now_s: float) -> None:
        """Note what a user holds from a time on, which is not before the last one."""
        self.users[user] = UserUse(self.at(user, now_s), now_s, held_milli)

    def follow(self, held_milli: Mapping[str, int], now_s: float) -> None:
        """Note what all users hold from a time on; a user that is missing holds nothing."""
        for user in {**self.users, **held_milli}:
            held = held_milli.get(user, 0)
            if held != self.held_milli(user):
                self.set_held(user, held, now_s)

    def held_milli(self, user: str) -> int:
        """Return what a user holds, in thousandths of a device."""
        found = self.users.get(user)
        return 0 if found is None else found.held_milli

    def at(self, user: str, now_s: float) -> float:
        """Return the decayed device-seconds of a user at a time."""
        found = self.users.get(user)
        if found is None:
            return 0.0
        decay = -math.log(2.0) * max(0.0, now_s - found.since_s) / self.half_life_s
        devices = found.held_milli / FULL_DEVICE_MILLI
        gained_s = devices * self.half_life_s / math.log(2.0) * -math.expm1(decay)
        return found.device_s * math.exp(decay) + gained_s

    def per_weight(self, quotas: Quotas, now_s: float) -> dict[str, float]:
        """Return the decayed use of each user divided by its weight: the smallest is first.

        Slurm's fair-share factor 2^(-U / S) orders users in the same way.
        """
        return {user: self.at(user, now_s) / quotas.weight(user) for user in self.users}

    def change_half_life(self, half_life_s: float, now_s: float) -> None:
        """Decay all use with the half-life so far, and with another one from a time on."""
        for user in self.users:
            self.set_held(user, self.held_milli(user), now_s)
        self.half_life_s = half_life_s

    def copy(self, half_life_s: float | None = None) -> DecayedUse:
        """Return a copy, perhaps with another half-life from its last changes on."""
        return DecayedUse(half_life_s or self.half_life_s, self.users)
