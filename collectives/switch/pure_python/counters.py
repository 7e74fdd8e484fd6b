"""Counters of an aggregator, which it reports as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from presage.collectives.switch.protocol import Code


@dataclass
class Counters:
    """Totals since the aggregator started.

    Attributes
    ----------
    sums, completed : int
        Summed chunks, and AllReduces whose last chunk was summed.
    refusals : Counter
        REFUSED frames by their code.
    """

    bytes_in: int = 0
    bytes_out: int = 0
    sums: int = 0
    completed: int = 0
    refusals: Counter[Code] = field(default_factory=Counter)

    def as_json(self) -> dict[str, object]:
        """Return the counters by name; refusals by the lower-case name of the code."""
        return {
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "sums": self.sums,
            "completed": self.completed,
            "refusals": {code.name.lower(): self.refusals[code] for code in Code},
        }
