"""Data-set grouping: which samples each worker of an elastic job takes in each step.

The order of an epoch is a permutation by the job's seed and the epoch. A step takes the next
``batch`` samples of that order, whatever the number of workers, and splits them into one shard per
worker. The position in that order is the job's cursor, so a change of size in the middle of an
epoch neither repeats nor skips a sample.

Rule for uneven counts: shards are disjoint and contiguous, and their sizes differ by at most one;
the first ``count % shards`` shards have one sample more. Gradients are weighted by the number of
samples. The last batch of an epoch has what is left; a worker whose shard of it is empty takes part
in the sum with zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from presage.errors import ElasticError

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """Position of a job in its training: the samples before it are committed.

    Attributes
    ----------
    step : int
        Number of committed steps.
    epoch : int
        Number of committed epochs.
    position : int
        Number of committed samples of the current epoch.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        if min(self.step, self.epoch, self.position) < 0:
            raise ElasticError(f"{self}: a cursor has no negative part")

    @classmethod
    def from_message(cls, message: dict[str, int]) -> Self:
        """Return the cursor in a message."""
        return cls(*(int(message[name]) for name in ("step", "epoch", "position")))

    def to_message(self) -> dict[str, int]:
        """Return the cursor as JSON content."""
        return {"step": self.step, "epoch": self.epoch, "position": self.position}


def shard_bounds(count: int, shards: int) -> list[tuple[int, int]]:
    """Split ``count`` samples into contiguous shards whose sizes differ by at most one.

    Returns
    -------
    list of (int, int)
        First position and end of each shard.
    """
    size, longer = divmod(count, shards)
    starts = [i * size + min(i, longer) for i in range(shards + 1)]
    return list(pairwise(starts))


class DataSet:
    """Samples of a job, by index, in the order of each epoch.

    Parameters
    ----------
    samples : int
        Number of samples.
    seed : int
        Seed of the order of epochs.

    Raises
    ------
    ElasticError
        There are no samples.
    """

    def __init__(self, samples: int, seed: int) -> None:
        if samples < 1:
            raise ElasticError(f"samples={samples}: the data set is empty")
        self.samples, self.seed = samples, seed
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def order(self, epoch: int) -> Indices:
        """Return the order of an epoch, of shape (samples,)."""
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            self._epoch, self._order = epoch, generator.permutation(self.samples)
        return self._order

    def batch(self, cursor: Cursor, batch: int) -> Indices:
        """Return the samples of the step at a cursor: ``batch``, or what the epoch has left."""
        return self.order(cursor.epoch)[cursor.position : cursor.position + batch]

    def after(self, cursor: Cursor, batch: int) -> Cursor:
        """Return the cursor after the step at ``cursor``."""
        position = cursor.position + batch
        if position >= self.samples:
            return Cursor(cursor.step + 1, cursor.epoch + 1, 0)
        return replace(cursor, step=cursor.step + 1, position=position)

    def steps_per_epoch(self, batch: int) -> int:
        """Return the number of steps of an epoch, the shorter last one included."""
        return math.ceil(self.samples / batch)


def check_batch(batch: int, workers: int) -> None:
    """Raise ElasticError unless a batch has at least one sample for each worker."""
    if batch < workers:
        raise ElasticError(
            f"batch={batch} is less than {workers} workers; enlarge the batch or lower the number "
            "of workers"
        )
