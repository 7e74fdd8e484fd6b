"""Configurations to explore: jobs, plans of the controller, and what may go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from presage.collectives.core.fencing import JobPlan
from presage.collectives.core.messages import Message
from presage.collectives.core.view import JobView, Reason

Tables = Mapping[str, str]  # job -> a letter for each AllReduce: I for the switch, R for ring


@dataclass(frozen=True)
class Configuration:
    """A bounded run of some jobs, a controller and a switch.

    Attributes
    ----------
    name : str
        Name to print.
    protocol : str
        ``in_band`` or ``two_phase``.
    plans : tuple of Tables
        What the controller brings into force, one after the other.
    initial : Tables
        What is in force at the start, at all ranks. Empty: the controller knows no job, the switch
        has just started, and the ranks use ring.
    sizes : Mapping of str to int
        Number of ranks of each job.
    numbers : int
        Number of AllReduces of each job.
    slots : int
        Slots of the switch.
    fault : str
        Kind of fault: none, loss, duplicate, rank, controller, switch.
    faults : int
        How many of them may occur.
    early : int or None
        How many waits may time out while something else can still happen. When nothing else can
        happen, every wait may time out. None: calm, only waits of the controller ever time out.
    tries : int
        Rounds of the two-phase protocol for each plan.
    delayed : tuple of Message
        Messages of the past that are still under way at the start.
    is_reduced : bool
        Whether to use symmetry, to let commuting events happen first, and to drop messages that
        can have no effect. None of these may change a verdict.
    """

    name: str
    protocol: str
    plans: tuple[Tables, ...]
    initial: Tables = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=lambda: {"a": 2, "b": 2})
    numbers: int = 2
    slots: int = 1
    fault: str = "none"
    faults: int = 1
    early: int | None = 1
    tries: int = 2
    delayed: tuple[Message, ...] = ()
    is_reduced: bool = True

    @property
    def is_exclusive(self) -> bool:
        """Whether no table ever gives the switch to more jobs than its slots."""
        tables = [*self.plans, self.initial]
        return all(sum("I" in t for t in table.values()) <= self.slots for table in tables)

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong and nothing is slow."""
        return self.is_exclusive and self.early is None


def job_plans(tables: Tables, sizes: Mapping[str, int]) -> tuple[JobPlan, ...]:
    """Return the tables as plans of a controller."""
    return tuple(
        JobPlan(job, sizes[job], JobView(0, 0, decisions(table)))
        for job, table in sorted(tables.items())
    )


def decisions(table: str) -> bytes:
    """Return the decisions that letters stand for."""
    codes = {"I": Reason.NO_OTHER_ARRIVAL, "R": Reason.IN_USE}
    return bytes(codes[letter] for letter in table)
