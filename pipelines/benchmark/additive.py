"""Additive baseline: a victim's own effect on its log speed, plus an effect of each co-runner."""

from __future__ import annotations

import numpy as np

from presage.pipelines.benchmark.colocated import Colocated
from presage.system.arrays import Array, Mask

SHRINKAGE = 0.1  # ridge penalty of an effect, in squares of log speed


class Additive:
    """Log speed as a device's mean, the victim's effect and the sum of its co-runners' effects.

    A job without a measurement on the device has no effect; a device without measurements has the
    mean of all devices.
    """

    def __init__(self, train: Colocated, seen: Mask) -> None:
        self._jobs = sorted(set(train.members["job"]))
        x, devices = self._design(train)[seen], train.metadata["device"].to_numpy()[seen]
        y = np.log(train.measured[seen])
        self._mean = float(y.mean())
        self._fits: dict[str, tuple[float, Array]] = {}
        for device in sorted(set(devices)):
            here = devices == device
            mean = float(y[here].mean())
            inner = x[here].T @ x[here] + SHRINKAGE * np.eye(x.shape[1])
            self._fits[device] = mean, np.linalg.solve(inner, x[here].T @ (y[here] - mean))

    def speeds(self, rows: Colocated) -> Array:
        """Return the normalised speed of the victims."""
        x, nothing = self._design(rows), np.zeros(2 * len(self._jobs))
        out = np.empty(len(x))
        for device, here in rows.metadata.groupby("device").indices.items():
            mean, effects = self._fits.get(str(device), (self._mean, nothing))
            out[here] = mean + x[here] @ effects
        return np.exp(out)

    def _design(self, rows: Colocated) -> Array:
        """Return one-hot victims, and the counts of the jobs that run with them."""
        jobs = rows.members["job"].to_numpy()
        is_job = (jobs[:, None] == np.array(self._jobs, dtype=object)[None]).astype(np.float64)
        both: Array = np.concatenate([is_job, rows.sum_of_others(is_job)], axis=1)
        return both[rows.is_victim]
