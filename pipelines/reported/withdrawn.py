"""Reported outcomes that an operator withdrew: named in params.yaml, in quarantine from then on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from typing import Any

import pandas as pd

from presage.errors import ConfigError
from presage.pipelines.reported.plausibility import Fault
from presage.pipelines.stages.stage import PARAMS, check_settings, read_section

WITHDRAWN = "withdrawn"  # the rule, and the key of `outcomes` in params.yaml


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Which outcomes are meant: all that is said must hold, and something must be said.

    Attributes
    ----------
    reported_by, release_id, log : str
        As quarantine and the table ``outcomes`` have them; "" for any.
    machine : str
        Beginning of its name in the tables; "" for any.
    since, until : float, date or datetime
        When the run ended: Unix seconds, or a time, in UTC if it names no other zone. The first
        moment is among them, the last one is not.
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
            raise ValueError("it names nothing, and would withdraw everything")

    def of(self, rows: pd.DataFrame) -> pd.Series:
        """Which of :attr:`presage.pipelines.reported.reported_outcomes.Reported.rows` are meant."""
        at_s = rows["measured_at_s"]
        meant = (at_s >= _unix_s(self.since)) & (at_s < _unix_s(self.until))
        for name in ("reported_by", "release_id", "log"):
            if wanted := getattr(self, name):
                meant &= rows[name] == wanted
        return meant & rows["machine"].str.startswith(self.machine)


def read_withdrawals() -> list[Withdrawal]:
    """The list ``outcomes.withdrawn`` of params.yaml; none where it is left out.

    Raises
    ------
    ConfigError
        Names the entry and what is wrong with it.
    """
    listed = read_section("outcomes").get(WITHDRAWN) or []
    where = f"{PARAMS}: outcomes.{WITHDRAWN}"
    if not isinstance(listed, list):
        raise ConfigError(f"{where} is no list; write `- {{reported_by: NAME}}` below it")
    return [_read(one, f"{where}[{i}]") for i, one in enumerate(listed)]


def _read(one: Any, where: str) -> Withdrawal:
    if not isinstance(one, dict):
        raise ConfigError(f"{where}={one!r} is no mapping; write `- {{reported_by: NAME}}`")
    check_settings(one, Withdrawal, where=where)
    try:
        return Withdrawal(**one)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def withdrawn(rows: pd.DataFrame, withdrawals: Sequence[Withdrawal]) -> list[Fault | None]:
    """Of each row, the entry that withdraws it, counted from 0; None where none does."""
    faults: list[Fault | None] = [None] * len(rows)
    if not rows.empty:
        for i, withdrawal in enumerate(withdrawals):
            for position in withdrawal.of(rows).to_numpy().nonzero()[0]:
                faults[position] = (WITHDRAWN, f"by outcomes.{WITHDRAWN}[{i}] of {PARAMS}")
    return faults


def _unix_s(at: float | date | datetime) -> float:
    if isinstance(at, datetime):
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if isinstance(at, date):
        return datetime(at.year, at.month, at.day, tzinfo=UTC).timestamp()
    return float(at)
