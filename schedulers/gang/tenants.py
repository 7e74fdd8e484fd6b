"""Who is on each device, and what is left of it, while a decision puts more there."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.grant import WHOLE, Grant
from presage.schedulers.job import Job
from presage.schedulers.state import State


class Tenants:
    """As a state says, and as a decision that looks at it changes it.

    Attributes
    ----------
    room : Room
        What is left of every device.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.room = state.room()
        self._gone: set[str] = set()
        self._came: dict[int, tuple[Job, ...]] = {}

    def on(self, device: int) -> tuple[Job, ...]:
        """Jobs that have a part of a device, or keep one."""
        there = self._state.on(device)
        jobs = tuple(self._state.job(job_id) for job_id in there if job_id not in self._gone)
        return jobs + self._came.get(device, ())

    @property
    def nobody(self) -> NDArray[np.bool_]:
        """Devices that are whole: of shape (devices,)."""
        memory_bytes = self._state.cluster.columns.memory_bytes
        whole: NDArray[np.bool_] = self.room.compute_milli == WHOLE
        whole &= self.room.memory_bytes == memory_bytes
        return whole

    def leave(self, job_id: str) -> None:
        """A job gives up what it reserved."""
        self._gone.add(job_id)
        self.room.give(self._state.standing(job_id).grants)

    def come(self, job: Job, grants: Iterable[Grant]) -> None:
        """A job has, or keeps, this from now on."""
        grants = tuple(grants)
        self.room.take(grants)
        for grant in grants:
            self._came[grant.device] = (*self._came.get(grant.device, ()), job)
