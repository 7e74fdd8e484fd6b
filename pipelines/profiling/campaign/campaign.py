"""Measurement campaign: calibration, solo runs, then co-locations, within a time budget."""

from __future__ import annotations

import itertools
import logging
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from presage.errors import ProfilingError
from presage.features.device.device import Device, Share, usable_cores
from presage.features.graph.op_graph import OpGraph, OpNode
from presage.pipelines.profiling.campaign.anchors import (
    anchor_colocations,
    anchor_jobs,
    anchor_precisions,
)
from presage.pipelines.profiling.campaign.campaign_progress import Pace, Progress, Report
from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
from presage.pipelines.profiling.campaign.campaign_tables import CampaignTables, lock_folder
from presage.pipelines.profiling.campaign.measurement_plan import (
    Candidate,
    ColocationDraw,
    MeasuredJob,
    Sharing,
    draw_colocations,
    informative_order,
    order_jobs,
)
from presage.pipelines.profiling.campaign.plan_space import job_vector, run_seconds
from presage.pipelines.profiling.graph_tracing import trace_all
from presage.pipelines.profiling.running import profile_rows
from presage.pipelines.profiling.running.profiler import undivided_share
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.running.runner import OpenRunner, Runner, local_runner
from presage.pipelines.profiling.running.work import UNDIVIDED, Outcome, Row, Work, colocation_id
from presage.pipelines.profiling.sampling.samplers import is_gpu
from presage.pipelines.profiling.zoo import JobConfig, parse
from presage.system.arrays import Array

log = logging.getLogger(__name__)

FIRST_SOLO_S, FIRST_COLOCATED_S = 6.0, 10.0  # estimates before the first run
TRACE_SHARE = 0.1  # fraction of the remaining time for tracing one pool of jobs
POOL = 3  # candidates, as a multiple of the jobs that the budget allows
# A co-located window is longer than a solo one: several jobs with fewer steps per second.
COLOCATED_FACTOR, COLOCATED_STEPS, COLOCATED_LIMIT_S = 5 / 3, 8, 8.0


def run_campaign(
    folder: Path,
    settings: CampaignSettings,
    report: Report,
    options: RunOptions | None = None,
    open_runner: OpenRunner = local_runner,
) -> Progress:
    """Measure into the tables of ``folder``; existing measurements are not repeated.

    ``options`` configure the runs; the default is that of :class:`RunOptions`.

    Raises
    ------
    ProfilingError
        The settings are impossible, the folder or the device is in use, calibration fails, the
        budget is too small for one job, or the system is not Linux.
    TableError
        The folder holds a corrupt table.
    """
    began_s = time.monotonic()
    options = options or RunOptions(settings.threads or usable_cores(), seed=settings.seed)
    with open_runner(settings.campaign, options, folder) as runner, lock_folder(folder):
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
        self._solo, self._colocated = Pace(FIRST_SOLO_S), Pace(FIRST_COLOCATED_S)
        self._failed = 0
        self._foreign_loads: list[float] = []

    def run(self) -> Progress:
        self._check_device()
        self._check_share()
        self._runner.require(self._required_shares())
        self._calibrate()
        self._measure_jobs()
        self._measure_colocations()
        self._tables.write_missing()
        return self._report_progress("done", "")

    @property
    def _device(self) -> Device:
        return self._runner.device

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _own_rows(self, table: str) -> list[Row]:
        """Return the campaign's rows that were measured on these machines and devices."""
        found = self._tables.rows(
            table, campaign=self._settings.campaign, device_kind=self._device.kind
        )
        return [row for row in found if row["machine"] in self._runner.machines]

    def _undivided(self, mode: str) -> Share:
        return undivided_share(
            self._device, self._options.threads, self._runner.full_share, mode=mode
        )

    def _check_device(self) -> None:
        """Raise if a campaign that started on a GPU would continue on a processor."""
        begun = self._tables.rows("devices", campaign=self._settings.campaign)
        gpus = {row["device_kind"] for row in begun if row["compute_capability"] > 0}
        if gpus and not is_gpu(self._device):
            raise ProfilingError(
                f"campaign {self._settings.campaign!r} started on {min(gpus)!r}, but only "
                f"{self._device.kind!r} was found; see `presage doctor`, or name a new campaign"
            )

    def _check_share(self) -> None:
        """Raise if the share changed: a slowdown compares runs on the same share."""
        share = self._undivided("exclusive").fraction
        full = [row for row in self._own_rows("executions") if row["sharing_mode"] in UNDIVIDED]
        others = {row["share"] for row in full} - {share}
        if others:
            raise ProfilingError(
                f"campaign {self._settings.campaign!r} was measured on a share of {min(others)}, "
                f"but the share is now {share}; keep `threads`, or name a new campaign"
            )

    def _required_shares(self) -> list[Share]:
        """Return one share of every kind that the campaign allocates."""
        modes = self._settings.sharing if self._settings.colocations != 0 else ()
        colocated = [Share(0.5, m) if m == "mps" else self._undivided(m) for m in modes]
        return [*self._solo_shares(), *colocated]

    def _calibrate(self) -> None:
        known = {row["machine"] for row in self._own_rows("devices")}
        missing = [machine for machine in self._runner.machines if machine not in known]
        if not missing:
            return
        self._report_progress("calibrate", self._device.kind)
        made = self._runner.calibrate(missing, patience_s=self._settings.budget_s / 10)
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
        done = {row["job_id"] for row in self._own_rows("executions")}
        limit = None if settings.jobs is None else max(0, settings.jobs - len(done))
        shares = self._solo_shares()
        share = 1.0 if None not in (settings.jobs, settings.colocations) else settings.solo_share
        # A fraction of the time that calibration left.
        until_s = self._elapsed_s + share * (settings.budget_s - self._elapsed_s)
        jobs = self._jobs_in_order(done, limit, until_s - self._elapsed_s)
        new = (
            (job.config.name, share) for job in itertools.islice(jobs, limit) for share in shares
        )
        works = (
            Work((name,), (share,), settings.window_s)
            for name, share in itertools.chain(self._shares_left(shares), new)
        )
        self._run_all("solo", works, self._solo, until_s)

    def _shares_left(self, shares: Sequence[Share]) -> list[tuple[str, Share]]:
        """Return the missing runs of jobs that an earlier call started."""
        done = {(r["job_id"], r["share"], r["sharing_mode"]) for r in self._own_rows("executions")}
        return [
            (job, share)
            for job in sorted({job for job, _, _ in done})
            for share in shares
            if (job, share.fraction, share.mode) not in done
        ]

    def _solo_shares(self) -> list[Share]:
        full = self._undivided("exclusive")
        return [
            full if fraction == 1.0 else Share(fraction, "mps")
            for fraction in self._settings.solo_shares
        ]

    def _check_first_job(self) -> None:
        """Raise if the budget is too small for one job; the first job may use all of it."""
        needed_s = self._elapsed_s + self._solo.next_s
        if needed_s > self._settings.budget_s:
            raise ProfilingError(
                f"budget of {self._settings.budget_s:g} s is too small for one job: "
                f"{self._elapsed_s:.0f} s have passed; raise profile.budget_s to "
                f"{math.ceil(needed_s)}"
            )

    def _jobs_in_order(
        self, done: set[str], limit: int | None, seconds: float
    ) -> Iterator[Candidate]:
        """Yield jobs that are not measured yet, most informative first; trace a pool at a time."""
        if self._settings.anchor:
            return self._anchors_in_order(done)
        configs = self._settings.configs(large=is_gpu(self._device))
        waiting = [
            config
            for config in order_jobs(configs, seed=self._settings.seed)
            if config.name not in done
        ]
        fitting = math.ceil(max(1.0, seconds) * self._runner.slots / FIRST_SOLO_S)
        pool = POOL * min(fitting, limit if limit is not None else fitting)
        measured = [vector for name, vector in self._vectors().items() if name in done]
        return informative_order(waiting, self._describe, pool=max(1, pool), measured=measured)

    def _anchors(self) -> list[JobConfig]:
        large = is_gpu(self._device)
        return anchor_jobs(anchor_precisions(self._device, large=large), large=large)

    def _anchors_in_order(self, done: set[str]) -> Iterator[Candidate]:
        """Yield the anchors that are not measured yet."""
        waiting = [config for config in self._anchors() if config.name not in done]
        while waiting:
            visited, described = self._describe(waiting)
            waiting = waiting[visited:]
            yield from described

    def _describe(self, configs: Sequence[JobConfig]) -> tuple[int, list[Candidate]]:
        """Describe jobs for :func:`informative_order`, in a small part of the remaining time."""
        self._report_progress("trace", f"{len(configs)} jobs")
        until_s = time.monotonic() + TRACE_SHARE * (self._settings.budget_s - self._elapsed_s)
        visited, described = 0, []
        for config, graph in trace_all(configs):
            visited += 1
            if isinstance(graph, OpGraph):
                self._graphs[config.name] = graph
                seconds = run_seconds(graph, self._device, config.precision)
                described.append(Candidate(config, _job_vector(config, graph), seconds))
            else:
                log.warning("skipping %s: %s", config.name, graph)
            if described and time.monotonic() > until_s:
                break
        return visited, described

    def _vectors(self) -> dict[str, Array]:
        """Return the vectors of the jobs in the tables."""
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
        solo = {
            row["job_id"]: row
            for row in self._own_rows("executions")
            if not row["failure"] and row["sharing_mode"] in UNDIVIDED
        }
        done = _colocations_in(self._own_rows("colocations"))
        limit = None if settings.colocations is None else max(0, settings.colocations - len(done))
        undivided = self._undivided("time-slice")
        drawn = (
            anchor_colocations(self._anchors(), solo, undivided, done)
            if settings.anchor
            else draw_colocations(
                _measured_jobs(solo, self._vectors()),
                self._device.kind,
                Sharing(settings.members, settings.sharing, undivided),
                capacity_bytes=self._device.memory_bytes,
                seed=settings.seed,
                done=done,
            )
        )
        works = (
            self._colocated_work(jobs, shares, [solo[job]["step_time_median_s"] for job in jobs])
            for jobs, shares in itertools.islice(drawn, limit)
        )
        self._run_all("colocated", works, self._colocated, settings.budget_s)

    def _colocated_work(
        self, jobs: tuple[str, ...], shares: tuple[Share, ...], solo_s: Sequence[float]
    ) -> Work:
        window_s = colocated_window_s(self._settings.window_s, solo_steps_s=sum(solo_s))
        return Work(jobs, shares, window_s, tuple(solo_s))

    def _run_all(self, phase: str, works: Iterable[Work], pace: Pace, until_s: float) -> None:
        """Make runs, as many at a time as there are devices, until the time is over."""
        under_way = 0
        fresh = phase == "solo" and not self._own_rows("executions")
        for work in works:
            if fresh and not under_way and not pace.duration_s:
                self._check_first_job()
            elif self._elapsed_s + pace.next_s > until_s:
                break
            self._start(phase, work)
            under_way += 1
            while under_way >= self._runner.slots:
                self._store(self._runner.wait(), pace)
                under_way -= 1
        for _ in range(under_way):
            self._store(self._runner.wait(), pace)

    def _start(self, phase: str, work: Work) -> None:
        solo = phase == "solo"
        self._report_progress(
            phase,
            work.jobs[0] if solo else colocation_id(work.jobs, self._device.kind, work.shares),
        )
        if solo:
            self._add_job(work.jobs[0])
        self._runner.start(work, seconds_left=self._settings.budget_s - self._elapsed_s)

    def _add_job(self, name: str) -> None:
        if name in self._tables.values("jobs", "job_id"):
            return
        graph = self._graphs[name]
        # Write nodes before the job, so that a job always has its graph.
        if graph.digest not in self._tables.values("nodes", "graph_digest"):
            self._tables.add("nodes", profile_rows.node_rows(graph))
        self._tables.add("jobs", [profile_rows.job_row(parse(name), graph)])

    def _store(self, outcome: Outcome, pace: Pace) -> None:
        self._tables.add("executions" if outcome.work.solo else "colocations", outcome.rows)
        pace.duration_s.append(outcome.duration_s)
        self._failed += outcome.failed
        if outcome.foreign_load is not None:
            self._foreign_loads.append(outcome.foreign_load)
        foreign = "unknown" if outcome.foreign_load is None else f"{outcome.foreign_load:.3f}"
        level = logging.WARNING if outcome.failed else logging.INFO
        summary = ", ".join(outcome.messages)
        log.log(level, "%s; foreign load %s; took %.1f s", summary, foreign, outcome.duration_s)

    def _report_progress(self, phase: str, current: str) -> Progress:
        progress = Progress(
            phase=phase,
            current=current,
            solo=len(self._solo.duration_s),
            colocated=len(self._colocated.duration_s),
            failed=self._failed,
            elapsed_s=self._elapsed_s,
            left_s=0.0 if phase == "done" else self._left_s(),
            foreign_load=statistics.median(self._foreign_loads or [0.0]),
        )
        self._report(progress)
        return progress

    def _left_s(self) -> float:
        """Return the remaining seconds: of the budget, or of the requested runs if shorter."""
        left_s = max(0.0, self._settings.budget_s - self._elapsed_s)
        settings = self._settings
        if settings.jobs is None or settings.colocations is None:
            return left_s
        jobs = max(0, settings.jobs - len(self._own_rows("executions")))
        colocated = len({row["colocation_id"] for row in self._own_rows("colocations")})
        colocations = max(0, settings.colocations - colocated)
        needed_s = jobs * self._solo.mean_s + colocations * self._colocated.mean_s
        return min(left_s, needed_s / max(1, self._runner.slots))


def _colocations_in(colocations: Iterable[Row]) -> list[ColocationDraw]:
    """Return the co-locations in rows with one row per member."""
    members: dict[str, list[Row]] = {}
    for row in sorted(colocations, key=lambda row: row["member"]):
        members.setdefault(row["colocation_id"], []).append(row)
    return [
        (
            tuple(row["job_id"] for row in member_rows),
            tuple(Share(row["share"], row["sharing_mode"]) for row in member_rows),
        )
        for member_rows in members.values()
    ]


def _job_vector(config: JobConfig, graph: OpGraph) -> Array:
    return job_vector(
        config, graph.nodes, parameters=graph.parameters, peak_live_bytes=graph.peak_live_bytes
    )


def _measured_jobs(solo: Mapping[str, Row], vectors: Mapping[str, Array]) -> dict[str, MeasuredJob]:
    return {job: MeasuredJob(vectors[job], row["memory_peak_bytes"]) for job, row in solo.items()}


def colocated_window_s(least_solo_s: float, *, solo_steps_s: float) -> float:
    """Return the window of a co-location: a member's step may take as long as all solo steps."""
    least_s = COLOCATED_FACTOR * least_solo_s
    return min(COLOCATED_LIMIT_S, max(least_s, COLOCATED_STEPS * solo_steps_s))
