"""Withdrawal of reported outcomes: params.yaml lists them, and they are quarantined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from typing import Any

import pandas as pd

from presage.errors import ConfigError
from presage.pipelines.reported.plausibility import Fault
from presage.pipelines.reported.reported_outcomes import WITHDRAWN
from presage.pipelines.stages.stage import PARAMS, check_settings, read_section

# The rule is the key in `outcomes` of params.yaml.


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Selection of outcomes: all given conditions must hold, and one must be given.

    Attributes
    ----------
    reported_by, release_id, log : str
        Values as in quarantine and the table ``outcomes``; "" for any.
    machine : str
        Prefix of its name in the tables; "" for any.
    since, until : float, date or datetime
        Half-open interval of the run's end: Unix seconds, or a time, in UTC without a time zone.
    """

    reported_by: str = ""
    release_id: str = ""
    log: str = ""
    machine: str = ""
    since: float | date | datetime = -math.inf
    until: float | date | datetime = math.inf

    def __post_init__(self) -> None:
        if not _unix_s(self.since) < _unix_s(self.until):
            raise ValueError(f"since={self.since} is not before until={self.until}")
        if all(getattr(self, field.name) == field.default for field in fields(self)):
            raise ValueError("no condition is given, which would withdraw every outcome")

    def matches(self, rows: pd.DataFrame) -> pd.Series:
        """Mark the selected rows of the table ``Reported.rows`` in ``reported_outcomes``."""
        at_s = rows["measured_at_s"]
        is_selected = (at_s >= _unix_s(self.since)) & (at_s < _unix_s(self.until))
        for name in ("reported_by", "release_id", "log"):
            if value := getattr(self, name):
                is_selected &= rows[name] == value
        return is_selected & rows["machine"].str.startswith(self.machine)


def read_withdrawals() -> list[Withdrawal]:
    """Read the list ``outcomes.withdrawn`` of params.yaml; empty without the key.

    Raises
    ------
    ConfigError
        An entry is invalid; the message names it.
    """
    listed = read_section("outcomes").get(WITHDRAWN) or []
    where = f"{PARAMS}: outcomes.{WITHDRAWN}"
    if not isinstance(listed, list):
        raise ConfigError(f"{where} is not a list; write `- {{reported_by: NAME}}` below it")
    return [_read(one, f"{where}[{i}]") for i, one in enumerate(listed)]


def _read(one: Any, where: str) -> Withdrawal:
    if not isinstance(one, dict):
        raise ConfigError(f"{where}={one!r} is not a mapping; write `- {{reported_by: NAME}}`")
    check_settings(one, Withdrawal, where=where)
    try:
        return Withdrawal(**one)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def withdrawn(rows: pd.DataFrame, withdrawals: Sequence[Withdrawal]) -> list[Fault | None]:
    """Return for each row the entry that withdraws it, counted from 0; None without one."""
    faults: list[Fault | None] = [None] * len(rows)
    if not rows.empty:
        for i, withdrawal in enumerate(withdrawals):
            for position in withdrawal.matches(rows).to_numpy().nonzero()[0]:
                faults[position] = (WITHDRAWN, f"by outcomes.{WITHDRAWN}[{i}] of {PARAMS}")
    return faults


def _unix_s(at: float | date | datetime) -> float:
    if isinstance(at, datetime):
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if isinstance(at, date):
        return datetime(at.year, at.month, at.day, tzinfo=UTC).timestamp()
    return float(at)
