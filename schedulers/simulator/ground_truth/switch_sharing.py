"""Effect of switches with in-network computing on the step times of gangs.

The simulator gives the gangs that run on several nodes, and gets a factor for each. What computes
the factors is passed in by the caller: schedulers do not import collectives (decision 51).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class PlacedGang(NamedTuple):
    """Gang that runs on several nodes.

    Attributes
    ----------
    job_id : str
        Unique id.
    nodes : tuple of str
        Names of its nodes, in order.
    step_s : float
        Step time with AllReduce by ring; 0 if unknown.
    gradient_bytes : int
        Bytes of all gradients; 0 if unknown.
    """

    job_id: str
    nodes: tuple[str, ...]
    step_s: float
    gradient_bytes: int


class SwitchSharing(Protocol):
    """Step times of gangs that share switches."""

    def factors(self, gangs: Sequence[PlacedGang]) -> Mapping[str, float]:
        """Return each gang's step time over that by ring; those without a factor have 1."""
        ...
