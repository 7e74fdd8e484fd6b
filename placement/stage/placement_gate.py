"""Gate of placement releases: better than every heuristic, and than the champion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from presage.errors import ConfigError
from presage.placement.stage.paired_evaluation import PairedRatio

PROMOTED, NOT_PROMOTED = "promoted", "not promoted"
WOULD_BE_PROMOTED = "would be promoted"  # an experiment
CHAMPION = "the champion"
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementGatePolicy:
    """Settings of the gate.

    Attributes
    ----------
    confidence : float
        Of the interval of each ratio; every interval must be below 1.
    resamples : int
        Bootstrap draws of batches.
    """

    confidence: float = 0.95
    resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1 or self.resamples < 100:
            raise ConfigError(
                f"confidence={self.confidence} must be within 0.5 and below 1, and "
                f"resamples={self.resamples} at least 100"
            )


def decide(
    challenger: str, champion: str | None, ratios: Mapping[str, PairedRatio], input_digest: str
) -> Document:
    """Return the gate's decision.

    A release must be better than all of the others, so that one that is only equal to the best of
    them passes no more often than one comparison does by chance; more need no correction.

    Parameters
    ----------
    challenger, champion : str
        Release ids.
    ratios : mapping of str to PairedRatio
        Makespan over that of each heuristic, and of the champion.
    input_digest : str
        Digest of everything that the decision depends on.
    """
    verdicts = {name: verdict(one) for name, one in ratios.items()}
    failed = [f"{verdicts[name]} {name}{_interval(ratios[name])}" for name in ratios
              if verdicts[name] != "better than"]  # fmt: skip
    worst = max(ratios, key=lambda name: ratios[name].ratio)
    reason = "; ".join(failed) or f"better than every heuristic, {worst}{_interval(ratios[worst])}"
    return {
        "challenger": challenger,
        "champion": champion,
        "asked": input_digest,
        "outcome": NOT_PROMOTED if failed else PROMOTED,
        "reason": reason,
        "figures": {name: _figures(one) for name, one in ratios.items()},
        "verdicts": verdicts,
    }


def verdict(ratio: PairedRatio) -> str:
    """Return how a release compares with another policy."""
    if ratio.is_tie:
        return "a tie with"
    if ratio.high < 1:
        return "better than"
    return "worse than" if ratio.low > 1 else "not surely better than"


def _interval(ratio: PairedRatio) -> str:
    if ratio.is_tie:
        return ", as which it decides"
    return f" ({ratio.ratio:.4f}, {ratio.low:.4f} to {ratio.high:.4f})"


def _figures(ratio: PairedRatio) -> dict[str, float]:
    return {name: float(f"{getattr(ratio, name):.5g}") for name in ("ratio", "low", "high")}
