"""Outcomes of a measured campaign, as a scheduler would report them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from presage.features.tables.campaign import COLOCATION
from presage.serving.outcomes.outcome import Outcome

if TYPE_CHECKING:
    from presage.features.device.device import Device
    from presage.features.tables.campaign import Campaign


def campaign_outcomes(
    campaign: Campaign, release_id: str, known: Mapping[str, Device]
) -> list[Outcome]:
    """Return the successful runs, solo ones first, because slowdowns refer to them.

    Parameters
    ----------
    release_id : str
        Release whose forecasts the runs are compared with.
    known : mapping of str to Device
        Devices of the server by kind, whose data sheets its clients use; other kinds are reported
        with the measured one.
    """
    rows = campaign.executions.to_dict("records")
    solo = [_solo(campaign, row, release_id, known) for row in rows if not row["failure"]]
    shared = [
        outcome
        for _, members in campaign.colocations.groupby(COLOCATION, sort=False)
        if not (members["failure"].any() or members["slowdown"].isna().any())
        for outcome in _shared(campaign, members.to_dict("records"), release_id, known)
    ]
    return solo + shared


def _solo(
    campaign: Campaign, row: Mapping[Any, Any], release_id: str, known: Mapping[str, Device]
) -> Outcome:
    place, memory = campaign.placement(row), _number(row["memory_peak_bytes"])
    return Outcome(
        _key(row, release_id, row["job_id"], row["share"], row["sharing_mode"]),
        place.job,
        known.get(place.device.kind, place.device),
        place.share,
        release_id,
        compute_utilization=_number(row["compute_utilization"]),
        memory_peak_bytes=None if memory is None else int(memory),
        step_time_median_s=_number(row["step_time_median_s"]),
    )


def _shared(
    campaign: Campaign,
    rows: Sequence[Mapping[Any, Any]],
    release_id: str,
    known: Mapping[str, Device],
) -> Iterator[Outcome]:
    """Yield the outcome of each member of a co-location."""
    places = [campaign.placement(row) for row in rows]
    for i, (row, place) in enumerate(zip(rows, places, strict=True)):
        yield Outcome(
            _key(row, release_id, row["colocation_id"], row["member"]),
            place.job,
            known.get(place.device.kind, place.device),
            place.share,
            release_id,
            step_time_median_s=float(row["step_time_median_s"]),
            colocated_jobs=tuple(
                (other.job, other.share) for j, other in enumerate(places) if j != i
            ),
        )


def _key(row: Mapping[Any, Any], release_id: str, *run: object) -> str:
    """Return the idempotency key of a run: another one for each release."""
    text = json.dumps([release_id, row["campaign"], row["machine"], *run])
    return f"profile/{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _number(value: float | None) -> float | None:
    """Return a measured value; None if it is missing."""
    return None if value is None or value != value else float(value)  # noqa: PLR0124 - NaN
