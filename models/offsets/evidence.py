"""Evidence for offsets: sums of the errors of forecasts, to which outcomes are added and removed.

An error is the logarithm of measured over predicted; that of a fraction is a difference of
log-odds. Sums are whole numbers, so removing an outcome is the exact inverse of adding it, and the
order of outcomes has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

# A level and names, for example ("device", "h200"); the level determines the prior variance.
Effect = tuple[str | bytes, ...]
Terms = tuple[tuple[Effect, float], ...]

_UNIT = 2.0**-32  # of the sums
# Errors beyond a factor of 100 come from wrong units or wrong jobs, not from a wrong forecast.
IMPLAUSIBLE = math.log(100.0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Error of the forecast of one quantity of one outcome.

    Attributes
    ----------
    cell : hashable
        Equal for repeated runs: one job on one device and share, with the same co-located jobs.
    terms : tuple of (Effect, float)
        Effects that add up to the expected error, with their weights; equal in a cell.
    error : float
    """

    cell: Hashable
    terms: Terms
    error: float

    @property
    def is_plausible(self) -> bool:
        """Whether the error is a number within a factor of 100."""
        return abs(self.error) <= IMPLAUSIBLE  # False for NaN


@dataclass(slots=True)
class Cell:
    """Sum of the errors of repeated runs, in units of ``2 ** -32``."""

    terms: Terms
    runs: int = 0
    total: int = 0

    @property
    def mean(self) -> float:
        """Mean error."""
        return self.total * _UNIT / self.runs


@dataclass(eq=False)
class EvidenceSums:
    """Sums of evidence by cell.

    Parameters
    ----------
    largest : float
        Errors count as at most this large, so that a wrong outcome has a bounded influence.
    """

    largest: float
    _cells: dict[Hashable, Cell] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EvidenceSums) and self._cells == other._cells

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def cells(self) -> Mapping[Hashable, Cell]:
        """Cells with at least one run."""
        return self._cells

    def add(self, evidence: Evidence) -> bool:
        """Add an error; return False and change nothing if it is implausible."""
        if not evidence.is_plausible:
            return False
        cell = self._cells.setdefault(evidence.cell, Cell(evidence.terms))
        cell.runs += 1
        cell.total += self._whole(evidence.error)
        return True

    def remove(self, evidence: Evidence) -> None:
        """Remove an error that was added; an implausible one was not.

        Raises
        ------
        KeyError
            Nothing of its cell was added.
        """
        if not evidence.is_plausible:
            return
        cell = self._cells[evidence.cell]
        cell.runs -= 1
        cell.total -= self._whole(evidence.error)
        if not cell.runs:
            del self._cells[evidence.cell]

    def _whole(self, error: float) -> int:
        return round(max(-self.largest, min(self.largest, error)) / _UNIT)
