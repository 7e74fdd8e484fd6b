"""A campaign: calibrate the device, measure jobs alone, then co-locations, within a time budget."""

from __future__ import annotations

import itertools
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from presage.features.device import Device, detect, usable_cores
from presage.features.errors import GraphError, ProfilingError
from presage.features.graph import OpGraph
from presage.features.torch_graph import trace_step
from presage.pipelines.profiling import rows
from presage.pipelines.profiling.calibrate import calibrate
from presage.pipelines.profiling.campaign_settings import CampaignSettings
from presage.pipelines.profiling.campaign_tables import CampaignTables, locked
from presage.pipelines.profiling.child import ChildFailure
from presage.pipelines.profiling.machine import machine_digest, require_linux, versions
from presage.pipelines.profiling.measure import (
    RunOptions,
    RunResult,
    measure_alone,
    measure_together,
    wait_until_quiet,
)
from presage.pipelines.profiling.plan import colocation_id, draw_colocations, order_jobs
from presage.pipelines.profiling.samplers import is_gpu, make_sampler
from presage.pipelines.profiling.zoo import JobConfig, all_configs, build, parse

log = logging.getLogger(__name__)

FIRST_ALONE_S, FIRST_TOGETHER_S = 6.0, 10.0  # a run's time before any was made
# Together a window is longer than alone: fewer steps per second, of several jobs.
TOGETHER_FACTOR, TOGETHER_STEPS, TOGETHER_LIMIT_S = 5 / 3, 8, 8.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a campaign stands, told before every run and at the end."""

    phase: str  # "calibrate", "alone", "together", "done"
    current: str
    alone: int
    together: int
    failed: int
    elapsed_s: float
    left_s: float


Report = Callable[[Progress], None]


def run_campaign(
    folder: Path, settings: CampaignSettings, report: Report, options: RunOptions | None = None
) -> Progress:
    """Measure into the tables of ``folder``; what is there already is not measured again.

    ``options`` are how runs are made; by default as :class:`RunOptions` has them.

    Raises
    ------
    ProfilingError
        The settings cannot be met, the folder is in use, calibration fails, or the budget is too
        small for one job; or this is not Linux.
    TableError
        The folder holds a damaged table.
    """
    require_linux()
    with locked(folder):
        return _Campaign(folder, settings, report, options).run()


@dataclass
class _Pace:
    """How long a kind of run takes, from those made so far."""

    guess_s: float
    taken_s: list[float] = field(default_factory=list)

    @property
    def next_s(self) -> float:
        """Most time the next one should take: runs near the end of a budget do not wait."""
        return 1.5 * statistics.median(self.taken_s[-9:]) if self.taken_s else self.guess_s

    @property
    def mean_s(self) -> float:
        return sum(self.taken_s) / len(self.taken_s) if self.taken_s else self.guess_s


class _Campaign:
    def __init__(
        self,
        folder: Path,
        settings: CampaignSettings,
        report: Report,
        options: RunOptions | None,
    ) -> None:
        self._began_s = time.monotonic()
        self._until_s = self._began_s + settings.budget_s
        self._settings = settings
        self._report = report
        self._tables = CampaignTables(folder)
        self._device = detect()
        self._options = options or RunOptions(
            settings.threads or usable_cores(), seed=settings.seed
        )
        self._context = rows.Context(
            device=self._device,
            fraction=_fraction(self._device, self._options.threads),
            campaign=settings.campaign,
            machine=machine_digest(self._device),
            versions=versions(self._device),
        )
        self._alone, self._together = _Pace(FIRST_ALONE_S), _Pace(FIRST_TOGETHER_S)
        self._failed = 0

    def run(self) -> Progress:
        self._check_share()
        self._calibrate()
        self._measure_jobs()
        self._measure_colocations()
        self._tables.write_missing()
        return self._tell("done", "")

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _mine(self, table: str) -> list[rows.Row]:
        """Rows of the campaign that were measured on this machine and device."""
        return self._tables.rows(
            table,
            campaign=self._context.campaign,
            machine=self._context.machine,
            device_kind=self._device.kind,
        )

    def _check_share(self) -> None:
        """A slowdown compares runs on the same share, and nothing is measured twice."""
        others = {row["share"] for row in self._mine("executions")} - {self._context.fraction}
        if others:
            raise ProfilingError(
                f"campaign {self._settings.campaign!r} was measured on a share of {min(others)}, "
                f"now it would be {self._context.fraction}; keep `threads`, or name a new campaign"
            )

    def _calibrate(self) -> None:
        if self._mine("devices"):
            return
        self._tell("calibrate", self._device.kind)
        patience_s = min(self._options.quiet_wait_s, self._settings.budget_s / 10)
        wait_until_quiet(make_sampler(self._device), self._options, patience_s=patience_s)
        try:
            # The whole device, whatever part of it jobs are given: a share scales it down.
            device = calibrate(self._device, threads=usable_cores())
        except ChildFailure as failure:
            raise ProfilingError(
                f"device {self._device.kind!r} cannot be calibrated: {failure}; "
                "see what torch says with `presage doctor`"
            ) from failure
        self._tables.add("devices", [rows.device_row(device, self._context, time.time())])
        log.info("calibrated %s", device)

    def _measure_jobs(self) -> None:
        settings = self._settings
        done = {row["job_id"] for row in self._mine("executions")}
        wanted = None if settings.jobs is None else settings.jobs - len(done)
        share = 1.0 if None not in (settings.jobs, settings.colocations) else settings.solo_share
        # Of what calibration has left.
        until_s = self._elapsed_s + share * (settings.budget_s - self._elapsed_s)
        configs = [
            config
            for config in order_jobs(all_configs(), seed=settings.seed)
            if config.name not in done
            and (not settings.families or config.family in settings.families)
        ]
        for config in itertools.islice(configs, None if wanted is None else max(0, wanted)):
            needed_s = self._elapsed_s + self._alone.next_s
            if not done and not self._alone.taken_s:
                self._check_first_job(needed_s)
            elif needed_s > until_s:
                return
            self._measure_job(config)

    def _check_first_job(self, needed_s: float) -> None:
        """It may use the whole budget: a campaign that measures nothing is none."""
        if needed_s > self._settings.budget_s:
            raise ProfilingError(
                f"budget of {self._settings.budget_s:g} s is too small for one job: "
                f"{self._elapsed_s:.0f} s are gone; raise profile.budget_s to {math.ceil(needed_s)}"
            )

    def _measure_job(self, config: JobConfig) -> None:
        began_s = time.monotonic()
        self._tell("alone", config.name)
        if config.name not in self._tables.values("jobs", "job_id"):
            try:
                graph = trace(config)
            except GraphError as error:
                log.warning("%s is left out: %s", config.name, error)
                return
            self._add_job(config, graph)
        result = measure_alone(
            config,
            self._device,
            self._options,
            window_s=self._settings.window_s,
            until_s=self._until_s,
        )
        row = rows.execution_row(result, self._context, time.time())
        self._tables.add("executions", [row])
        self._alone.taken_s.append(time.monotonic() - began_s)
        self._note(result, self._alone.taken_s[-1])

    def _add_job(self, config: JobConfig, graph: OpGraph) -> None:
        # Nodes first: a job's graph is there before the job is.
        if graph.digest not in self._tables.values("nodes", "graph_digest"):
            self._tables.add("nodes", rows.node_rows(graph))
        self._tables.add("jobs", [rows.job_row(config, graph)])

    def _measure_colocations(self) -> None:
        settings = self._settings
        solo_s: dict[str, float] = {
            row["job_id"]: row["step_time_median_s"]
            for row in self._mine("executions")
            if not row["failure"]
        }
        done = {row["colocation_id"] for row in self._mine("colocations")}
        wanted = None if settings.colocations is None else settings.colocations - len(done)
        drawn: Iterator[tuple[str, ...]] = draw_colocations(
            solo_s, self._device.kind, seed=settings.seed, done=done
        )
        for jobs in itertools.islice(drawn, None if wanted is None else max(0, wanted)):
            if self._elapsed_s + self._together.next_s > settings.budget_s:
                return
            self._measure_colocation(jobs, solo_s)

    def _measure_colocation(self, jobs: tuple[str, ...], solo_s: dict[str, float]) -> None:
        began_s = time.monotonic()
        self._tell("together", colocation_id(jobs, self._device.kind))
        result = measure_together(
            [parse(job) for job in jobs],
            self._device,
            self._options,
            window_s=together_window_s(
                self._settings.window_s, solo_steps_s=sum(solo_s[job] for job in jobs)
            ),
            until_s=self._until_s,
        )
        new = rows.colocation_rows(result, solo_s, self._context, time.time())
        self._tables.add("colocations", new)
        self._together.taken_s.append(time.monotonic() - began_s)
        self._note(result, self._together.taken_s[-1])

    def _note(self, result: RunResult, taken_s: float) -> None:
        self._failed += result.failed
        for member in result.members:
            if member.failure:
                log.warning("%s: %s (%s)", member.job, member.failure, member.message)
        steps = ", ".join(
            f"{member.job} {1e3 * member.step_time_median_s:.2f} ms"
            for member in result.members
            if member.step_time_median_s is not None
        )
        foreign = "unknown" if result.foreign_load is None else f"{result.foreign_load:.3f}"
        log.info("%s; foreign load %s; took %.1f s", steps, foreign, taken_s)

    def _tell(self, phase: str, current: str) -> Progress:
        progress = Progress(
            phase=phase,
            current=current,
            alone=len(self._alone.taken_s),
            together=len(self._together.taken_s),
            failed=self._failed,
            elapsed_s=self._elapsed_s,
            left_s=0.0 if phase == "done" else self._left_s(),
        )
        self._report(progress)
        return progress

    def _left_s(self) -> float:
        """Time to the end: of the budget, or of what was asked for if that is sooner."""
        left_s = max(0.0, self._settings.budget_s - self._elapsed_s)
        settings = self._settings
        if settings.jobs is None or settings.colocations is None:
            return left_s
        jobs = max(0, settings.jobs - len(self._mine("executions")))
        together = len({row["colocation_id"] for row in self._mine("colocations")})
        colocations = max(0, settings.colocations - together)
        return min(left_s, jobs * self._alone.mean_s + colocations * self._together.mean_s)


def _fraction(device: Device, threads: int) -> float:
    """Share of the device that a job of so many threads can use."""
    return 1.0 if is_gpu(device) else threads / device.cores


def trace(config: JobConfig) -> OpGraph:
    """Operator graph of a job of the zoo, on the meta device: nothing is computed.

    Raises
    ------
    GraphError
        The job cannot be traced.
    """
    with torch.device("meta"):
        step = build(config)
        return trace_step(step.run, step.modules, step.input_elements)


def trace_again(folder: Path) -> int:
    """Trace every job of a measured folder again, for when the tracer has changed; how many.

    Measurements stay as they are. At any moment each job's graph is in ``nodes``.
    """
    with locked(folder):
        tables = CampaignTables(folder)
        old = tables.rows("jobs")
        graphs = {row["job_id"]: trace(parse(row["job_id"])) for row in old}
        distinct = {graph.digest: graph for graph in graphs.values()}
        present = tables.values("nodes", "graph_digest")
        for digest, graph in distinct.items():
            if digest not in present:
                tables.add("nodes", rows.node_rows(graph))
        tables.replace("jobs", [rows.job_row(parse(job), graph) for job, graph in graphs.items()])
        nodes = [row for graph in distinct.values() for row in rows.node_rows(graph)]
        tables.replace("nodes", nodes)
    return len(old)


def together_window_s(least_alone_s: float, *, solo_steps_s: float) -> float:
    """Seconds to step a co-location: each member's step may take as long as all of them."""
    least_s = TOGETHER_FACTOR * least_alone_s
    return min(TOGETHER_LIMIT_S, max(least_s, TOGETHER_STEPS * solo_steps_s))
