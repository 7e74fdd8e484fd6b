"""A campaign: calibrate devices, measure jobs alone, then co-locations, within a time budget."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from presage.errors import ProfilingError
from presage.features.device.device import Device, Share, usable_cores
from presage.features.graph.op_graph import OpGraph, OpNode
from presage.pipelines.profiling.campaign.campaign_progress import Pace, Progress, Report
from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
from presage.pipelines.profiling.campaign.campaign_tables import CampaignTables, locked
from presage.pipelines.profiling.campaign.measurement_plan import (
    Described,
    Drawn,
    Measured,
    Sharing,
    draw_colocations,
    order_jobs,
    teaching_order,
)
from presage.pipelines.profiling.campaign.plan_space import job_vector, run_seconds
from presage.pipelines.profiling.running import rows
from presage.pipelines.profiling.running.profiler import undivided_share
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.running.runner import OpenRunner, Runner, local_runner
from presage.pipelines.profiling.running.work import UNDIVIDED, Outcome, Row, Work, colocation_id
from presage.pipelines.profiling.sampling.samplers import is_gpu
from presage.pipelines.profiling.tracing import trace_all
from presage.pipelines.profiling.zoo import JobConfig, parse
from presage.system.arrays import Array

log = logging.getLogger(__name__)

FIRST_ALONE_S, FIRST_TOGETHER_S = 6.0, 10.0  # a run's time before any was made
TRACE_SHARE = 0.1  # of the time left, for tracing one pool of jobs
POOL = 3  # jobs to choose among, as a multiple of those that the budget allows
# Together a window is longer than alone: fewer steps per second, of several jobs.
TOGETHER_FACTOR, TOGETHER_STEPS, TOGETHER_LIMIT_S = 5 / 3, 8, 8.0


def run_campaign(
    folder: Path,
    settings: CampaignSettings,
    report: Report,
    options: RunOptions | None = None,
    open_runner: OpenRunner = local_runner,
) -> Progress:
    """Measure into the tables of ``folder``; what is there already is not measured again.

    ``options`` are how runs are made; by default as :class:`RunOptions` has them.

    Raises
    ------
    ProfilingError
        The settings cannot be met, the folder or the device is in use, calibration fails, or the
        budget is too small for one job; or this is not Linux.
    TableError
        The folder holds a damaged table.
    """
    began_s = time.monotonic()
    options = options or RunOptions(settings.threads or usable_cores(), seed=settings.seed)
    with open_runner(settings.campaign, options, folder) as runner, locked(folder):
        return _Campaign(folder, settings, report, options, runner, began_s).run()


class _Campaign:
    def __init__(
        self,
        folder: Path,
        settings: CampaignSettings,
        report: Report,
        options: RunOptions,
        runner: Runner,
        began_s: float,
    ) -> None:
        self._began_s = began_s
        self._settings = settings
        self._report = report
        self._options = options
        self._runner = runner
        self._tables = CampaignTables(folder)
        self._graphs: dict[str, OpGraph] = {}
        self._alone, self._together = Pace(FIRST_ALONE_S), Pace(FIRST_TOGETHER_S)
        self._failed = 0

    def run(self) -> Progress:
        self._check_device()
        self._check_share()
        self._runner.require(self._shares_wanted())
        self._calibrate()
        self._measure_jobs()
        self._measure_colocations()
        self._tables.write_missing()
        return self._tell("done", "")

    @property
    def _device(self) -> Device:
        return self._runner.device

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _mine(self, table: str) -> list[Row]:
        """Rows of the campaign that were measured on these machines and devices."""
        found = self._tables.rows(
            table, campaign=self._settings.campaign, device_kind=self._device.kind
        )
        return [row for row in found if row["machine"] in self._runner.machines]

    def _undivided(self, mode: str) -> Share:
        return undivided_share(
            self._device, self._options.threads, self._runner.whole_share, mode=mode
        )

    def _check_device(self) -> None:
        """A campaign that was begun on a GPU does not go on on a processor by mistake."""
        begun = self._tables.rows("devices", campaign=self._settings.campaign)
        gpus = {row["device_kind"] for row in begun if row["compute_capability"] > 0}
        if gpus and not is_gpu(self._device):
            raise ProfilingError(
                f"campaign {self._settings.campaign!r} was begun on {min(gpus)!r}, now only "
                f"{self._device.kind!r} is found; see `presage doctor`, or name a new campaign"
            )

    def _check_share(self) -> None:
        """A slowdown compares runs on the same share, and nothing is measured twice."""
        share = self._undivided("exclusive").fraction
        whole = [row for row in self._mine("executions") if row["sharing_mode"] in UNDIVIDED]
        others = {row["share"] for row in whole} - {share}
        if others:
            raise ProfilingError(
                f"campaign {self._settings.campaign!r} was measured on a share of {min(others)}, "
                f"now it would be {share}; keep `threads`, or name a new campaign"
            )

    def _shares_wanted(self) -> list[Share]:
        """One of every kind that jobs of the campaign will be given."""
        modes = self._settings.sharing if self._settings.colocations != 0 else ()
        together = [Share(0.5, m) if m == "mps" else self._undivided(m) for m in modes]
        return [*self._solo_shares(), *together]

    def _calibrate(self) -> None:
        known = {row["machine"] for row in self._mine("devices")}
        wanted = [machine for machine in self._runner.machines if machine not in known]
        if not wanted:
            return
        self._tell("calibrate", self._device.kind)
        made = self._runner.calibrate(wanted, patience_s=self._settings.budget_s / 10)
        self._tables.add("devices", made)
        for row in made:
            peaks = zip(row["precisions"], row["peak_flops_per_s"], strict=True)
            log.info(
                "calibrated %s: %s, %.0f GB/s, %.1f us an operator",
                row["device_kind"],
                ", ".join(f"{name} {1e-12 * peak:.3g} TFLOP/s" for name, peak in peaks),
                1e-9 * row["memory_bandwidth_bytes_per_s"],
                1e6 * row["op_overhead_s"],
            )

    def _measure_jobs(self) -> None:
        settings = self._settings
        done = {row["job_id"] for row in self._mine("executions")}
        wanted = None if settings.jobs is None else max(0, settings.jobs - len(done))
        shares = self._solo_shares()
        share = 1.0 if None not in (settings.jobs, settings.colocations) else settings.solo_share
        # Of what calibration has left.
        until_s = self._elapsed_s + share * (settings.budget_s - self._elapsed_s)
        jobs = self._jobs_in_order(done, wanted, until_s - self._elapsed_s)
        new = (
            (job.config.name, share) for job in itertools.islice(jobs, wanted) for share in shares
        )
        works = (
            Work((name,), (share,), settings.window_s)
            for name, share in itertools.chain(self._shares_left(shares), new)
        )
        self._make("alone", works, self._alone, until_s)

    def _shares_left(self, shares: Sequence[Share]) -> list[tuple[str, Share]]:
        """What an earlier call left undone of a job that it had begun."""
        done = {(r["job_id"], r["share"], r["sharing_mode"]) for r in self._mine("executions")}
        return [
            (job, share)
            for job in sorted({job for job, _, _ in done})
            for share in shares
            if (job, share.fraction, share.mode) not in done
        ]

    def _solo_shares(self) -> list[Share]:
        whole = self._undivided("exclusive")
        return [whole if part == 1.0 else Share(part, "mps") for part in self._settings.solo_shares]

    def _check_first_job(self) -> None:
        """It may use the whole budget: a campaign that measures nothing is none."""
        needed_s = self._elapsed_s + self._alone.next_s
        if needed_s > self._settings.budget_s:
            raise ProfilingError(
                f"budget of {self._settings.budget_s:g} s is too small for one job: "
                f"{self._elapsed_s:.0f} s are gone; raise profile.budget_s to {math.ceil(needed_s)}"
            )

    def _jobs_in_order(
        self, done: set[str], wanted: int | None, seconds: float
    ) -> Iterator[Described]:
        """Jobs not yet measured, those first that teach most; traced a pool at a time."""
        configs = self._settings.configs(large=is_gpu(self._device))
        waiting = [
            config
            for config in order_jobs(configs, seed=self._settings.seed)
            if config.name not in done
        ]
        fitting = math.ceil(max(1.0, seconds) * self._runner.slots / FIRST_ALONE_S)
        pool = POOL * min(fitting, wanted if wanted is not None else fitting)
        measured = [vector for name, vector in self._vectors().items() if name in done]
        return teaching_order(waiting, self._describe, pool=max(1, pool), measured=measured)

    def _describe(self, configs: Sequence[JobConfig]) -> tuple[int, list[Described]]:
        """As :func:`teaching_order` asks, in a small part of the time that is left."""
        self._tell("trace", f"{len(configs)} jobs")
        until_s = time.monotonic() + TRACE_SHARE * (self._settings.budget_s - self._elapsed_s)
        seen, described = 0, []
        for config, graph in trace_all(configs):
            seen += 1
            if isinstance(graph, OpGraph):
                self._graphs[config.name] = graph
                seconds = run_seconds(graph, self._device, config.precision)
                described.append(Described(config, _vector_of(config, graph), seconds))
            else:
                log.warning("%s is left out: %s", config.name, graph)
            if described and time.monotonic() > until_s:
                break
        return seen, described

    def _vectors(self) -> dict[str, Array]:
        """Where the jobs of the tables lie."""
        nodes: dict[str, list[OpNode]] = {}
        for row in self._tables.rows("nodes"):
            nodes.setdefault(row.pop("graph_digest"), []).append(OpNode(**row))
        return {
            row["job_id"]: job_vector(
                parse(row["job_id"]),
                nodes[row["graph_digest"]],
                parameters=row["parameters"],
                peak_live_bytes=row["peak_live_bytes"],
            )
            for row in self._tables.rows("jobs")
        }

    def _measure_colocations(self) -> None:
        settings = self._settings
        alone = {
            row["job_id"]: row
            for row in self._mine("executions")
            if not row["failure"] and row["sharing_mode"] in UNDIVIDED
        }
        done = _drawn(self._mine("colocations"))
        wanted = None if settings.colocations is None else max(0, settings.colocations - len(done))
        drawn = draw_colocations(
            _measured(alone, self._vectors()),
            self._device.kind,
            Sharing(settings.members, settings.sharing, self._undivided("time-slice")),
            capacity_bytes=self._device.memory_bytes,
            seed=settings.seed,
            done=done,
        )
        works = (
            self._work_together(jobs, shares, [alone[job]["step_time_median_s"] for job in jobs])
            for jobs, shares in itertools.islice(drawn, wanted)
        )
        self._make("together", works, self._together, settings.budget_s)

    def _work_together(
        self, jobs: tuple[str, ...], shares: tuple[Share, ...], solo_s: Sequence[float]
    ) -> Work:
        window_s = together_window_s(self._settings.window_s, solo_steps_s=sum(solo_s))
        return Work(jobs, shares, window_s, tuple(solo_s))

    def _make(self, phase: str, works: Iterable[Work], pace: Pace, until_s: float) -> None:
        """Make runs, as many at a time as there are devices, until the time is over."""
        under_way = 0
        fresh = phase == "alone" and not self._mine("executions")
        for work in works:
            if fresh and not under_way and not pace.taken_s:
                self._check_first_job()
            elif self._elapsed_s + pace.next_s > until_s:
                break
            self._start(phase, work)
            under_way += 1
            while under_way >= self._runner.slots:
                self._keep(self._runner.wait(), pace)
                under_way -= 1
        for _ in range(under_way):
            self._keep(self._runner.wait(), pace)

    def _start(self, phase: str, work: Work) -> None:
        alone = phase == "alone"
        self._tell(
            phase,
            work.jobs[0] if alone else colocation_id(work.jobs, self._device.kind, work.shares),
        )
        if alone:
            self._add_job(work.jobs[0])
        self._runner.start(work, seconds_left=self._settings.budget_s - self._elapsed_s)

    def _add_job(self, name: str) -> None:
        if name in self._tables.values("jobs", "job_id"):
            return
        graph = self._graphs[name]
        # Nodes first: a job's graph is there before the job is.
        if graph.digest not in self._tables.values("nodes", "graph_digest"):
            self._tables.add("nodes", rows.node_rows(graph))
        self._tables.add("jobs", [rows.job_row(parse(name), graph)])

    def _keep(self, outcome: Outcome, pace: Pace) -> None:
        self._tables.add("executions" if outcome.work.alone else "colocations", outcome.rows)
        pace.taken_s.append(outcome.taken_s)
        self._failed += outcome.failed
        foreign = "unknown" if outcome.foreign_load is None else f"{outcome.foreign_load:.3f}"
        level = logging.WARNING if outcome.failed else logging.INFO
        said = ", ".join(outcome.messages)
        log.log(level, "%s; foreign load %s; took %.1f s", said, foreign, outcome.taken_s)

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
        needed_s = jobs * self._alone.mean_s + colocations * self._together.mean_s
        return min(left_s, needed_s / max(1, self._runner.slots))


def _drawn(colocations: Iterable[Row]) -> list[Drawn]:
    """The co-locations that rows, one per member, are of."""
    members: dict[str, list[Row]] = {}
    for row in sorted(colocations, key=lambda row: row["member"]):
        members.setdefault(row["colocation_id"], []).append(row)
    return [
        (
            tuple(row["job_id"] for row in rows_of),
            tuple(Share(row["share"], row["sharing_mode"]) for row in rows_of),
        )
        for rows_of in members.values()
    ]


def _vector_of(config: JobConfig, graph: OpGraph) -> Array:
    return job_vector(
        config, graph.nodes, parameters=graph.parameters, peak_live_bytes=graph.peak_live_bytes
    )


def _measured(alone: Mapping[str, Row], vectors: Mapping[str, Array]) -> dict[str, Measured]:
    return {job: Measured(vectors[job], row["memory_peak_bytes"]) for job, row in alone.items()}


def together_window_s(least_alone_s: float, *, solo_steps_s: float) -> float:
    """Seconds to step a co-location: each member's step may take as long as all of them."""
    least_s = TOGETHER_FACTOR * least_alone_s
    return min(TOGETHER_LIMIT_S, max(least_s, TOGETHER_STEPS * solo_steps_s))
