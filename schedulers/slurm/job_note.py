"""Note about a job in its AdminComment: what was predicted, and which time limit is the user's own.

Slurm keeps it with the job, so that bridge and watcher need no state of their own. A user cannot
write an AdminComment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

UNLIMITED = "unlimited"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[A-Za-z0-9_.:+-]{0,100}")
_MARK = "presage:"
MAX_MINUTES = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNote:
    """What the bridge decided for a job.

    Attributes
    ----------
    own_minutes : int or None
        Time limit that the job would have without Presage; None if it has none.
    set_minutes : int or None
        Time limit that the bridge or the watcher set last; None if they did not change it. If the
        job has another one, its user or an administrator changed it, and Presage keeps that.
    predicted_s : float or None
        Predicted run time at ``quantile``; None without a forecast in the domain of the release.
    median_s : float or None
        Predicted median of the run time; None as above.
    risk : float
        Accepted probability that the job takes more memory than was requested for it.
    features : str
        SHA-256 of the job's features in the feature store.
    """

    own_minutes: int | None
    set_minutes: int | None = None
    predicted_s: float | None = None
    median_s: float | None = None
    quantile: float = 0.9
    risk: float = 0.1
    release_id: str = ""
    device: str = ""
    share: float = 1.0
    features: str = ""

    def text(self) -> str:
        """Return the note as text without spaces inside values."""
        values = {
            "limit": UNLIMITED if self.own_minutes is None else self.own_minutes,
            "set": self.set_minutes,
            "predicted": None if self.predicted_s is None else f"{self.predicted_s:.0f}",
            "median": None if self.median_s is None else f"{self.median_s:.0f}",
            "quantile": f"{self.quantile:g}",
            "risk": f"{self.risk:g}",
            "release": self.release_id,
            "device": self.device,
            "share": f"{self.share:g}",
            "features": self.features,
        }
        words = [f"{name}={value}" for name, value in values.items() if value not in (None, "")]
        return " ".join([_MARK, *words])

    @classmethod
    def parse(cls, comment: str) -> Self | None:
        """Return the note in an AdminComment; None if it contains none or an invalid one."""
        _, mark, text = comment.partition(_MARK)
        if not mark:
            return None
        try:
            values = dict(word.split("=", 1) for word in text.split())
            return cls(
                own_minutes=None if values["limit"] == UNLIMITED else _minutes(values["limit"]),
                set_minutes=_minutes(values["set"]) if "set" in values else None,
                predicted_s=float(values["predicted"]) if "predicted" in values else None,
                median_s=float(values["median"]) if "median" in values else None,
                quantile=float(values["quantile"]),
                risk=float(values["risk"]),
                release_id=_matching(_WORD, values.get("release", "")),
                device=_matching(_WORD, values.get("device", "")),
                share=_fraction(values["share"]),
                features=_matching(_DIGEST, values["features"]) if "features" in values else "",
            )
        except (ValueError, KeyError):
            return None


def is_word(text: str) -> bool:
    """Return whether a text can be a value of a note."""
    return _WORD.fullmatch(text) is not None


def _matching(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError(text)
    return text


def _minutes(text: str) -> int:
    value = int(text)
    if not 0 < value <= MAX_MINUTES:
        raise ValueError(text)
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value
