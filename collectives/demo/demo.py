"""Demonstration: training jobs that share a switch, first by ring only, then with an arbiter."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from presage.collectives.demo.contending_jobs import JobResult, run_jobs, throughput
from presage.collectives.demo.inc_domain import inc_domain
from presage.collectives.demo.training_job import TrainingJob
from presage.collectives.star_network import MAX_HOSTS, check_network, star_network
from presage.errors import ConfigError, ServiceError

_OPTIONS = {"mbit_per_s": "--mbit", "seconds": "--seconds", "gradient_mib": "--gradient-mib"}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Settings of the demonstration.

    Attributes
    ----------
    jobs, ranks : int
        Number of jobs, and of ranks of each; each rank is a machine of the emulated network.
    mbit_per_s : float
        Rate of the link of each machine, in each direction.
    seconds : float
        Measured time of each of the two runs.
    gradient_mib : float
        Gradients of an iteration of each job.
    timeline : Path
        File for the picture, ``.html`` or ``.svg``.
    """

    jobs: int = 2
    ranks: int = 3
    mbit_per_s: float = 50.0
    seconds: float = 15.0
    gradient_mib: float = 2.0
    timeline: Path = Path("timeline.html")

    def __post_init__(self) -> None:
        if self.jobs < 1 or self.ranks < 2 or self.jobs * self.ranks > MAX_HOSTS:
            raise ConfigError(
                f"{self.jobs} jobs of {self.ranks} ranks: use at least 1 job, 2 ranks of each, and "
                f"at most {MAX_HOSTS} ranks together"
            )
        for name, option in _OPTIONS.items():
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise ConfigError(f"{option} {value:g}, must be a finite number above 0")

    def training_jobs(self) -> list[TrainingJob]:
        """Return the jobs: their computation takes 0.25, 0.4, 0.55 ... seconds."""
        size = int(self.gradient_mib * (1 << 20))
        return [
            TrainingJob(f"job-{i + 1}", self.ranks, size, 0.25 + 0.15 * i) for i in range(self.jobs)
        ]


@dataclass(frozen=True, slots=True)
class DemoRow:
    """A job in both runs.

    Attributes
    ----------
    ring_s, shared_s : float
        Mean time of an iteration by ring only, and with the arbiter.
    speedup : float
        Ratio of the two.
    inc_share : float
        Share of its AllReduces that the switch summed, with the arbiter.
    is_equal : bool
        Whether the parameters of all its ranks are bitwise equal at the end of both runs.
    """

    job: str
    ranks: int
    compute_s: float
    ring_s: float
    shared_s: float
    speedup: float
    inc_share: float
    is_equal: bool

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Jobs in both runs, and why the time line could not be drawn; "" if it was."""

    rows: list[DemoRow]
    timeline_problem: str


def run_demo(options: DemoOptions, say: Callable[[str], None]) -> DemoResult:
    """Run the jobs twice, and write the time line of the second run.

    Parameters
    ----------
    say : callable
        Receives what is done next.

    Raises
    ------
    NetworkUnavailableError
        The machine does not permit an emulated network; the message says what is missing.
    ServiceError
        A process ended early.
    """
    check_network()
    jobs = options.training_jobs()
    with (
        tempfile.TemporaryDirectory(prefix="presage-inc-demo-") as place,
        star_network(options.jobs * options.ranks, options.mbit_per_s) as network,
    ):
        folder = Path(place)
        say(
            f"emulated network: 1 switch and {network.hosts} machines with links of "
            f"{options.mbit_per_s:g} Mbit/s"
        )
        say(f"training {options.jobs} jobs by ring only, for {options.seconds:g} s")
        ring = run_jobs(network, jobs, options.seconds, logs=folder)
        say("starting the switch and the arbiter")
        with inc_domain(network, folder) as domain:
            say(f"training the same jobs with the arbiter, for {options.seconds:g} s")

            drawn, problems = options.timeline.absolute(), list[str]()

            def draw() -> None:
                try:
                    domain.request("timeline", "--last", "10s", "--out", str(drawn))
                except ServiceError as error:
                    problems.append(str(error))

            shared = run_jobs(
                network, jobs, options.seconds, arbiter=domain.arbiter, token=domain.token,
                before_end=draw, logs=folder,
            )  # fmt: skip
    return DemoResult(_rows(ring, shared), "; ".join(problems))


def _rows(ring: Sequence[JobResult], shared: Sequence[JobResult]) -> list[DemoRow]:
    return [
        DemoRow(
            own.job.name, own.job.ranks, own.job.compute_s, before.iteration_s, own.iteration_s,
            ratio, own.inc_share, own.is_equal and before.is_equal,
        )
        for own, before, ratio in zip(shared, ring, throughput(shared, ring), strict=True)
    ]  # fmt: skip
