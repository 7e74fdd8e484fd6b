"""What a folder of tables measured of models, as a simulated world knows it."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from presage.schedulers.measurements import Measurements


def read_measurements(folder: Path) -> Measurements:
    """Models of a campaign or an imported source: on whole devices alone, and together.

    Where one was measured several times, on several machines of a kind or in several campaigns,
    its median counts. Co-locations of members with a part of the device each are left out: of
    them it cannot be told what would be without the parts.

    Raises
    ------
    TableError
        A table is missing or damaged.
    """
    from presage.pipelines.campaigns import read_campaign
    from presage.schedulers.measurements import Measurements

    campaign = read_campaign(folder)
    alone = campaign.executions[(campaign.executions["share"] == 1.0)]
    ran = alone[alone["failure"] == ""]

    def of(column: str) -> dict[Any, float]:
        known = ran.dropna(subset=[column])
        medians = known.groupby(["job_id", "device_kind"])[column].median()
        return {key: float(value) for key, value in medians.items()}

    together: dict[tuple[str, tuple[str, ...]], list[tuple[float, ...]]] = {}
    too_large = set()
    whole = campaign.colocations[campaign.colocations["share"] == 1.0]
    for _, rows in whole.groupby(["colocation_id", "machine", "campaign"]):
        ordered = rows.sort_values(["job_id", "member"])
        place = ordered["device_kind"].iloc[0], tuple(ordered["job_id"])
        if len(place[1]) != ordered["members"].iloc[0]:
            continue
        if not ordered["fits"].all():
            too_large.add(place)
        elif ordered["slowdown"].notna().all():
            together.setdefault(place, []).append(tuple(ordered["slowdown"]))
    return Measurements(
        features=campaign.jobs,
        step_s=of("step_time_median_s"),
        busy=of("compute_utilization"),
        memory_bytes={key: int(value) for key, value in of("memory_peak_bytes").items()},
        slowdowns={
            place: tuple(median(of_one) for of_one in zip(*runs, strict=True))
            for place, runs in together.items()
        },
        too_large=frozenset(too_large),
    )
