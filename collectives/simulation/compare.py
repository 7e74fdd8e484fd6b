"""Comparison of rules on one set of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.simulation.arbitrated import Arbitrated
from presage.collectives.simulation.phased_job import PhasedJob, Way
from presage.collectives.simulation.rules import Always, FirstCome, FirstForLife, Never, Rule
from presage.collectives.simulation.simulate import Outcome, simulate_phases

RULES = ("ring", "tree", "first-for-life", "first-come", "time-saved", "own-switch")
REFERENCE = "ring-or-tree"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speed of jobs over that with the faster of ring and tree.

    Attributes
    ----------
    by_job : mapping of str to float
        Speed of each job.
    refused : int
        AllReduces that were sent to a switch without a free slot.
    """

    by_job: Mapping[str, float]
    refused: int

    @property
    def mean(self) -> float:
        """Mean of all jobs."""
        return sum(self.by_job.values()) / len(self.by_job)

    @property
    def worst(self) -> float:
        """Smallest speed of a job."""
        return min(self.by_job.values())


def make_rule(
    name: str, jobs: Sequence[PhasedJob], slots: Mapping[str, int], options: ArbiterOptions
) -> Rule:
    """Return a new rule by its name.

    Raises
    ------
    ValueError
        The name is unknown.
    """
    match name:
        case "ring" | "tree":
            return Never(Way(name))
        case "ring-or-tree":
            return Never()
        case "first-for-life":
            return FirstForLife(dict(slots))
        case "first-come":
            return FirstCome()
        case "time-saved":
            return Arbitrated(jobs, slots, options)
        case "own-switch":
            return Always()
    raise ValueError(f"unknown rule {name!r}; rules are {', '.join((*RULES, REFERENCE))}")


def run_rules(
    jobs: Sequence[PhasedJob],
    slots: Mapping[str, int],
    rules: Sequence[str] = (*RULES, REFERENCE),
    *,
    duration_s: float,
    options: ArbiterOptions | None = None,
    seed: int = 0,
) -> dict[str, dict[str, Outcome]]:
    """Simulate jobs under each rule; return outcomes by rule and job."""
    chosen = options or ArbiterOptions()
    return {
        name: simulate_phases(
            jobs, slots, make_rule(name, jobs, slots, chosen), duration_s=duration_s, seed=seed
        )
        for name in rules
    }


def speeds(outcomes: Mapping[str, Outcome], reference: Mapping[str, Outcome]) -> Speeds:
    """Return the speed of each job over that of the reference."""
    return Speeds(
        {job: reference[job].iteration_s / out.iteration_s for job, out in outcomes.items()},
        sum(outcome.refused for outcome in outcomes.values()),
    )
