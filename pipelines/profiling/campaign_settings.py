"""What a campaign is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from presage.features.device import usable_cores
from presage.features.errors import ProfilingError
from presage.pipelines.profiling.zoo import FAMILIES

LEAST_BUDGET_S = 15.0  # calibration, and one job


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    """What a campaign is asked for; the keys of ``profile`` in params.yaml.

    Attributes
    ----------
    budget_s : float
        Wall time of this call; a later call on the same folder goes on with its own.
    jobs, colocations : int or None
        How many the campaign shall have, earlier calls counted; None for as many as the budget
        allows.
    window_s : float
        Least time that a job alone is stepped; together it is 5/3 of that.
    solo_share : float in [0, 1]
        Part of the budget for jobs alone, unless both numbers are given.
    families : tuple of str
        Families of the job zoo; empty for all.
    threads : int or None
        Threads of every job; None for as many as there are cores. On a processor fewer threads
        are a smaller share of the device.
    """

    campaign: str
    budget_s: float
    jobs: int | None = None
    colocations: int | None = None
    window_s: float = 1.2
    seed: int = 0
    solo_share: float = 0.5
    families: tuple[str, ...] = ()
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.budget_s < LEAST_BUDGET_S:
            raise ProfilingError(
                f"budget of {self.budget_s:g} s is too small: calibration and one job take "
                f"{LEAST_BUDGET_S:g} s; raise profile.budget_s"
            )
        if not 0 <= self.solo_share <= 1:
            raise ProfilingError(
                f"solo_share={self.solo_share}; give the part of the budget for jobs alone, 0 to 1"
            )
        if self.window_s <= 0:
            raise ProfilingError(f"window_s={self.window_s}; give seconds > 0, such as 1.2")
        if self.threads is not None and not 1 <= self.threads <= usable_cores():
            raise ProfilingError(
                f"threads={self.threads}; give 1 to {usable_cores()}, the cores of this machine"
            )
        for family in self.families:
            if family not in FAMILIES:
                near = get_close_matches(family, FAMILIES, n=1)
                hint = f"nearest is {near[0]!r}; " if near else ""
                raise ProfilingError(
                    f"the job zoo has no family {family!r}; {hint}known are {', '.join(FAMILIES)}"
                )
