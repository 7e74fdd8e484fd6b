"""Quotas of users and their past use, as the journal has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from presage.schedulers.core.users.decayed_use import DecayedUse, UserUse
from presage.schedulers.core.users.quota import Quota, Quotas
from presage.schedulers.live.controller.journal.records import HalfLifeChanged, QuotaChanged

if TYPE_CHECKING:
    from presage.schedulers.live.controller.replayed_state import LiveJob

HALF_LIFE, QUOTA, USE = "half-life", "quota ", "use "  # keys of rows, before the name of the user


def row_key(record: QuotaChanged | HalfLifeChanged) -> str:
    """Return the key of the snapshot row that a record changes."""
    return QUOTA + record.user if isinstance(record, QuotaChanged) else HALF_LIFE


@dataclass(slots=True)
class UserShares:
    """What users may hold, what they hold, and what they have used.

    A job holds its devices from its placement until its node reports its end. The use counts with
    the planned shares of devices, which agents may shrink for a time.
    """

    quotas: Quotas = field(default_factory=Quotas)
    use: DecayedUse = field(default_factory=DecayedUse)

    def change_quota(self, record: QuotaChanged) -> None:
        """Set the quota of a user, or remove it if the record has no number."""
        found = {user: quota for user, quota in self.quotas.of_user.items() if user != record.user}
        if record.devices is not None or record.weight is not None:
            found[record.user] = Quota(record.devices, record.weight)
        self.quotas = Quotas(found)

    def change_half_life(self, record: HalfLifeChanged, now_s: float) -> list[str]:
        """Change the half-life, and return the keys of the rows of all users."""
        self.use.change_half_life(record.half_life_s, now_s)
        return [USE + user for user in self.use.users]

    def hold(self, user: str, gained_milli: int, now_s: float) -> str:
        """Note that a user holds more or less from now on; return the key of its row."""
        self.use.set_held(user, self.use.held_milli(user) + gained_milli, now_s)
        return USE + user

    # Rows of snapshots ----------------------------------------------------------------------

    def row(self, key: str) -> dict[str, Any] | None:
        """Return the row of a key; None if there is none any more."""
        if key == HALF_LIFE:
            return {"half_life_s": self.use.half_life_s}
        if key.startswith(USE):
            user = self.use.users[key.removeprefix(USE)]
            return {"device_s": user.device_s, "since_s": user.since_s}
        quota = self.quotas.of_user.get(key.removeprefix(QUOTA))
        return None if quota is None else asdict(quota)

    @classmethod
    def from_rows(
        cls, rows: Mapping[str, Mapping[str, Any]], jobs: Iterable[LiveJob], now_s: float
    ) -> UserShares:
        """Return the shares of a snapshot; one of an earlier version has no rows of them.

        Parameters
        ----------
        jobs : iterable of LiveJob
            All jobs, which say what users hold.
        now_s : float
            Time of the snapshot, from which on the use of an earlier version counts.
        """
        quotas = {
            key.removeprefix(QUOTA): Quota(**row)
            for key, row in rows.items()
            if key.startswith(QUOTA)
        }
        held: dict[str, int] = {}
        for job in jobs:
            if job.held_milli:
                held[job.message.user] = held.get(job.message.user, 0) + job.held_milli
        users = {user: UserUse(0.0, now_s, milli) for user, milli in held.items()}
        for key, row in rows.items():
            if key.startswith(USE):
                user = key.removeprefix(USE)
                users[user] = UserUse(**row, held_milli=held.get(user, 0))
        half_life = rows.get(HALF_LIFE, {})
        return cls(Quotas(quotas), DecayedUse(**half_life, users=users))
