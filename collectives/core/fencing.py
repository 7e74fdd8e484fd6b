"""Fence of a controller at a switch: the admitted jobs, and the oldest epoch accepted of each.

A grant is published only after the switch has confirmed the fence of every revocation before it.
Contributions of an older view that are still under way, or come from a rank that does not hear the
controller, are refused from then on. Tokens and leases exist only at the controller and the switch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from presage.collectives.core.messages import Admission, Admitted, Hello
from presage.collectives.core.view import JobView


class JobPlan(NamedTuple):
    """Decisions that the controller is to put in force for one job; the epoch is set later."""

    job: str
    size: int
    view: JobView


@dataclass(frozen=True, slots=True)
class Fence:
    """What the controller last asked of the switch.

    Attributes
    ----------
    incarnation : int
        Start of the switch that it is meant for; 0 before the first ``Hello``.
    token : int
        Number of the admission.
    floors : tuple of (str, int)
        Admitted jobs, each with the oldest accepted epoch.
    """

    incarnation: int = 0
    token: int = 0
    floors: tuple[tuple[str, int], ...] = ()

    def with_floors(self, floors: Mapping[str, int]) -> Fence:
        """Return the fence with other floors and a new token."""
        return replace(self, token=self.token + 1, floors=tuple(sorted(floors.items())))

    def after_hello(self, message: Hello) -> Fence:
        """Return the fence for the current start of the switch; ignore a late ``Hello``."""
        if message.incarnation <= self.incarnation:
            return self
        return replace(self, incarnation=message.incarnation, token=self.token + 1)

    def greeted(self, message: Hello) -> tuple[Fence, tuple[Admission, ...]]:
        """Return the fence after a ``Hello``, and the answer to the switch unless it is late."""
        fence = self.after_hello(message)
        return fence, (fence.admission,) if fence.incarnation == message.incarnation else ()

    @property
    def admission(self) -> Admission:
        """Message to the switch."""
        return Admission(self.incarnation, self.token, self.floors)

    def is_confirmed_by(self, message: Admitted) -> bool:
        """Return whether the message confirms this fence, not one before it."""
        return message == Admitted(self.incarnation, self.token)


NO_FENCE = Fence()  # before the first ``Hello``


def next_floors(
    floors: Mapping[str, int], *, jobs: Collection[str], revoked: Collection[str], epoch: int
) -> dict[str, int]:
    """Return the floors under which the next grants are safe.

    Parameters
    ----------
    floors : Mapping of str to int
        Floors in force.
    jobs : Collection of str
        Jobs that stay or come; all others are not admitted any more.
    revoked : Collection of str
        Jobs that lose the use of the switch for some AllReduce.
    epoch : int
        Epoch of the revocation.
    """
    return {job: epoch if job in revoked else floors.get(job, 0) for job in jobs}
