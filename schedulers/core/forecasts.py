"""What is foretold of jobs: asked for in one batch, remembered, and never in a policy's way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from presage.errors import PresageError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job

MOST_TOGETHER = 500_000  # answers that are remembered
MOST_FAILURES = 3  # in a row, each of which may take as long as a service's deadline

Asked = TypeVar("Asked")
Told = TypeVar("Told")


class RuntimePrediction(NamedTuple):
    """What is foretold of a job on a kind of device, on its own there.

    Attributes
    ----------
    runtime_s : float
        Of the whole job, in the median; infinite where nothing is known.
    compute_milli : int
        Thousandths of a device that each member keeps busy, in the median.
    memory_bytes : int
        What each member takes of a device at most, with the certainty that was asked for.
    in_domain : bool
        Whether whoever foretells learnt from anything like it; else that certainty is no promise.
    setup_s : float
        Part of the run time that passes before its first iteration.
    high_s : float or None
        What the whole job takes at most, with that certainty; None where only a median is foretold.
    release_id : str
        The release that predicted it; "" if the forecaster is no release.
    """

    runtime_s: float
    compute_milli: int
    memory_bytes: int
    in_domain: bool = True
    setup_s: float = 0.0
    high_s: float | None = None
    release_id: str = ""

    @property
    def promised_s(self) -> float:
        """What may be promised of the whole job's run time (requirement N3's preset time)."""
        return self.runtime_s if self.high_s is None else self.high_s

    def remaining_s(self, done: float, elapsed_s: float = 0.0) -> float:
        """Run time of what is left once a part is done: that of so many fewer iterations.

        Before the first iteration it is less of the setup, by the time since the start.
        """
        if done <= 0:
            return self.runtime_s - min(elapsed_s, self.setup_s)
        return (self.runtime_s - self.setup_s) * (1.0 - done) if done < 1 else 0.0


class Forecaster(Protocol):
    """Whoever foretells: a service, a release in this process, a table, an oracle, nobody."""

    def predictions(self, asked: Sequence[tuple[Job, str]]) -> Sequence[RuntimePrediction | None]:
        """Of each job on a kind of device, in order; None where nothing can be said."""
        ...

    def slowdowns(
        self, asked: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> Sequence[Sequence[float] | None]:
        """Of jobs together on a kind of device, each one's step time over that alone."""
        ...


class Forecasts:
    """Forecasts for a cluster's kinds of devices.

    What is missing, infinite or not a number is a whole device, for as long as it takes: a policy
    never meets an exception, and packs nothing beside such a job.

    Parameters
    ----------
    otherwise : Forecaster, optional
        Whose words count while the first one gives no answer; it never fails.
    earlier : str
        As :attr:`failure`, of the forecasts before these.

    Attributes
    ----------
    failures : dict of str to int
        Why a forecaster gave no answer, and how often.
    missing : dict of str to int
        Of how many jobs nothing was foretold, by kind of device.
    out_of_domain : dict of str to int
        Of how many jobs what was foretold is out of the forecaster's domain, by kind of device.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        cluster: Cluster,
        otherwise: Forecaster | None = None,
        *,
        earlier: str = "",
    ) -> None:
        self._forecaster, self._otherwise = forecaster, otherwise
        self._failed = 0  # in a row
        self._answered, self._earlier = False, earlier
        self._expected: dict[str, Job] = {}
        self._known: dict[str, dict[str, RuntimePrediction]] = {}
        self._too_small: dict[str, tuple[str, ...]] = {}
        self._runtime_s: dict[str, float] = {}  # of those: asked for more often than anything else
        self._together: dict[tuple[str, tuple[object, ...]], tuple[float, ...]] = {}
        self._memory = cluster.memory_of
        self.failures: dict[str, int] = {}
        self.missing: dict[str, int] = {}
        self.out_of_domain: dict[str, int] = {}

    @property
    def failure(self) -> str:
        """Why nothing is foretold, until the forecaster answers again; "" if nothing is wrong."""
        return next(iter(self.failures), "" if self._answered else self._earlier)

    def expect(self, jobs: Iterable[Job]) -> None:
        """Jobs that are going to be asked for; all at once, when the first of them is."""
        self._expected.update((job.job_id, job) for job in jobs)

    def knows(self, job: Job) -> bool:
        """Whether a job was asked for already."""
        return job.job_id in self._known

    def _learn(self, job: Job) -> None:
        """Ask for a job and all that are expected, on every kind that will do."""
        expected, self._expected = self._expected, {}
        jobs = expected if job.job_id in expected else {**expected, job.job_id: job}
        asked: list[tuple[Job, str]] = []
        for job_id, one in jobs.items():
            self._known[job_id], self._runtime_s[job_id] = {}, math.inf
            asked += [(one, kind) for kind in self._memory if not one.kinds or kind in one.kinds]
        told = self._asked(self._forecaster.predictions, asked)
        if told is None:
            told = self._otherwise.predictions(asked) if self._otherwise else [None] * len(asked)
        for (of, kind), prediction in zip(asked, told, strict=True):
            self._known[of.job_id][kind] = sound = self._sound(prediction, kind)
            self._runtime_s[of.job_id] = min(self._runtime_s[of.job_id], sound.runtime_s)
            if of.job_id not in expected:  # it is over, and asked for in the name of one like it
                continue
            if prediction is None:
                self.missing[kind] = self.missing.get(kind, 0) + 1
            elif not prediction.in_domain:
                self.out_of_domain[kind] = self.out_of_domain.get(kind, 0) + 1
        for job_id, of_kinds in _by_job(asked, told).items():
            if small := self._small_of(of_kinds):
                self._too_small[job_id] = small
            else:
                self._too_small.pop(job_id, None)

    def _small_of(self, bounds: Mapping[str, float]) -> tuple[str, ...]:
        """Kinds that have less than a bound, of those where one is foretold; none if all have."""
        small = tuple(
            kind for kind, most_bytes in bounds.items() if most_bytes > self._memory[kind]
        )
        return small if len(small) < len(bounds) else ()

    def forget(self, job: Job) -> None:
        """A job that is over."""
        self._known.pop(job.job_id, None)
        self._too_small.pop(job.job_id, None)
        self._runtime_s.pop(job.job_id, None)
        self._expected.pop(job.job_id, None)

    def prediction(self, job: Job, kind: str) -> RuntimePrediction:
        """Of a job on a kind of device."""
        return self._of(job).get(kind) or self._sound(None, kind)

    def too_small(self, job: Job) -> tuple[str, ...]:
        """Kinds with less memory than a job is foretold to need, where another kind has enough."""
        self._of(job)
        return self._too_small.get(job.job_id, ())

    def runtime_s(self, job: Job) -> float:
        """Of a job on the kind where it takes least; infinite where nothing is known."""
        if job.job_id not in self._runtime_s:
            self._learn(job)
        return self._runtime_s[job.job_id]

    def slowdowns(self, asked: Sequence[tuple[str, tuple[Job, ...]]]) -> list[tuple[float, ...]]:
        """Of jobs together on a kind of device, at least 1; infinite where nothing is known.

        What was not asked before is asked for at once; jobs that are alike are asked for once.
        """
        keys = [(kind, tuple(job.equivalence_class for job in jobs)) for kind, jobs in asked]
        new = {
            key: (kind, jobs)
            for key, (kind, jobs) in zip(keys, asked, strict=True)
            if key not in self._together
        }
        if new:
            if len(self._together) > MOST_TOGETHER:
                self._together = {key: self._together[key] for key in keys if key in self._together}
            told = self._asked(self._forecaster.slowdowns, list(new.values()))
            if told is None:
                told = [None] * len(new)
            for (key, (_, jobs)), factors in zip(new.items(), told, strict=True):
                self._together[key] = _sound_factors(factors, len(jobs))
        return [self._together[key] for key in keys]

    def _of(self, job: Job) -> Mapping[str, RuntimePrediction]:
        """Outlooks by kind."""
        if job.job_id not in self._known:
            self._learn(job)
        return self._known[job.job_id]

    def _asked(
        self, ask: Callable[[Sequence[Asked]], Sequence[Told | None]], asked: Sequence[Asked]
    ) -> Sequence[Told | None] | None:
        """What a forecaster answers; None if it fails, or has too often in a row."""
        if self._failed < MOST_FAILURES:
            try:
                told = ask(asked)
            except (PresageError, ValueError, ArithmeticError) as error:  # or what is no number
                self._failed += 1
                self.failures[str(error)] = self.failures.get(str(error), 0) + 1
            else:
                self._failed = 0
                self._answered = self._answered or bool(asked)
                return told
        return None

    def _sound(self, prediction: RuntimePrediction | None, kind: str) -> RuntimePrediction:
        all_bytes = self._memory[kind]
        if prediction is None:
            return RuntimePrediction(math.inf, FULL_DEVICE_MILLI, all_bytes)
        runtime_s, compute_milli, memory_bytes, in_domain, setup_s, high_s, release_id = prediction
        known = math.isfinite(compute_milli) and math.isfinite(memory_bytes)
        if not known or not compute_milli >= 0 or not memory_bytes > 0:
            compute_milli, memory_bytes = FULL_DEVICE_MILLI, all_bytes
        if not math.isfinite(runtime_s) or not runtime_s >= 0:
            runtime_s, setup_s, high_s = math.inf, 0.0, None
        return RuntimePrediction(
            runtime_s,
            min(max(1, int(compute_milli)), FULL_DEVICE_MILLI),
            min(int(memory_bytes), all_bytes),
            in_domain,
            min(max(0.0, setup_s), runtime_s) if math.isfinite(setup_s) else 0.0,
            None if high_s is None or math.isnan(high_s) else max(0.0, high_s),
            release_id,
        )


def _by_job(
    asked: Sequence[tuple[Job, str]], told: Sequence[RuntimePrediction | None]
) -> dict[str, dict[str, float]]:
    """Bounds of memory that were foretold, by job and kind."""
    found: dict[str, dict[str, float]] = {}
    for (job, kind), prediction in zip(asked, told, strict=True):
        if prediction is not None and 0 < prediction.memory_bytes < math.inf:
            found.setdefault(job.job_id, {})[kind] = prediction.memory_bytes
    return found


def _sound_factors(factors: Sequence[float] | None, jobs: int) -> tuple[float, ...]:
    if factors is None or len(factors) != jobs:
        return (math.inf,) * jobs
    return tuple(max(1.0, float(s)) if math.isfinite(s) else math.inf for s in factors)
