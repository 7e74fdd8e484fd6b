"""Copy of an outcome log, for example of a shared database into a file that DVC reads."""

from __future__ import annotations

from contextlib import closing
from itertools import groupby, islice

from presage.errors import OutcomeLogError
from presage.serving.outcomes.outcome_log import (
    OutcomeLog,
    ReportedOutcome,
    last_position,
    read_outcomes,
    withdraw,
    withdrawn_keys,
)
from presage.system.files.log_address import LogAddress, log_name

_BATCH = 1_000


def copy_log(source: LogAddress, target: LogAddress) -> int:
    """Add the outcomes and withdrawals of a log to another one; return how many were new.

    Raises
    ------
    OutcomeLogError
        A log cannot be read or written, or the target has another outcome with the same key.
    """
    last_position(source)  # raises for a missing log, before the target is created
    withdrawn = [key for _, key in withdrawn_keys(source)]
    try:
        return _copy_outcomes(source, target)
    finally:  # also of those that were copied before an error
        if withdrawn and last_position(target):
            withdraw(target, keys=withdrawn)


def _copy_outcomes(source: LogAddress, target: LogAddress) -> int:
    new, rows = 0, read_outcomes(source)
    with closing(OutcomeLog(target)) as log:
        while batch := list(islice(rows, _BATCH)):
            for (reporter, at_s), same in groupby(batch, key=_arrival):
                outcomes = [(row.idempotency_key, row.message) for row in same]
                done = log.append(outcomes, reported_by=reporter, received_at_unix_s=at_s).result()
                if done.conflicting:
                    key = outcomes[done.conflicting[0]][0]
                    raise OutcomeLogError(
                        f"outcome log {log_name(target)} has another outcome with the key {key!r}; "
                        "copy to a new log"
                    )
                new += done.accepted
    return new


def _arrival(row: ReportedOutcome) -> tuple[str, float]:
    return row.reported_by, row.received_at_unix_s
