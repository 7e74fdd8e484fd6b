"""Table of the waits of users under each policy, for the report page and the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from presage.schedulers.report.figures import format_time_span
from presage.schedulers.simulator.results.user_metrics import UserMetrics

MAX_USERS = 20  # those with the most jobs


class UserRow(NamedTuple):
    """Row of the table, as texts."""

    user: str
    policy: str
    jobs: str
    average_wait: str
    longest_wait: str
    device_share: str


def user_rows(users: Mapping[str, Mapping[str, UserMetrics]]) -> list[UserRow]:
    """Return a row per user and policy; ``users`` are the metrics by policy, then by user."""
    most: dict[str, int] = {}
    for found in users.values():
        for user, one in found.items():
            most[user] = max(most.get(user, 0), one.jobs)
    shown = sorted(sorted(most, key=lambda user: -most[user])[:MAX_USERS])
    return [
        UserRow(
            user or "-",
            policy,
            f"{row.jobs:,}",
            format_time_span(row.average_wait_s),
            format_time_span(row.longest_wait_s),
            f"{100 * row.device_share:.1f} %",
        )
        for user in shown
        for policy, found in users.items()
        if (row := found.get(user)) is not None
    ]
