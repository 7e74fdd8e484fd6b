"""Scenario: the inputs of a simulation, and the functions that load them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from presage.errors import ConfigError
from presage.system.text.address import check_address

if TYPE_CHECKING:
    from presage.features.hazard.outage import Outage
    from presage.schedulers.core.cluster import Cluster
    from presage.schedulers.core.forecasts import Forecaster
    from presage.schedulers.core.job import Job
    from presage.schedulers.core.policy import Policy
    from presage.schedulers.core.users.quota import Quotas
    from presage.schedulers.faults.fault import Fault
    from presage.schedulers.forecasters.predicted import Predictor
    from presage.schedulers.simulator.ground_truth.ground_truth import GroundTruth
    from presage.schedulers.simulator.ground_truth.measurements import Measurements
    from presage.schedulers.simulator.ground_truth.switch_sharing import SwitchSharing
    from presage.schedulers.simulator.simulation import Simulation
    from presage.schedulers.traces.trace import Trace
    from presage.serving.client.client import PresageClient
    from presage.serving.client.credentials import Credentials

DAY_S = 86_400.0
NO_RELEASE = ("none", "oracle", "table")  # predictors without a release
MOST_NOISE, MOST_BIAS = 10.0, 1e6  # a run time of 1e12 s times such a factor is a finite number


@dataclass(frozen=True, slots=True)
class Scenario:
    """Inputs of a simulation: one trace on one cluster under one policy.

    Attributes
    ----------
    trace, cluster : Path
        Files for :func:`presage.schedulers.traces.formats.read_trace` and
        :func:`presage.schedulers.cluster_files.cluster_file.read_cluster`.
    predictor : str
        Source of forecasts: ``none``, ``oracle``, ``table``, a release folder, or HOST:PORT of a
        prediction server.
    seed : int
        Random seed of models, noise, faults and the policy.
    measured : Path or None
        Folder of measured tables. Without it, co-located jobs do not slow each other down.
    draw_models : bool
        Whether to draw the model of every job from the measured ones, even if the trace names one.
    shares : str
        Effect of allocated compute with ``measured``: see
        :class:`presage.schedulers.simulator.ground_truth.measured_truth.MeasuredTruth`.
    scaling : str
        Effect of the number of devices with ``measured``: linear, or as measured; see the same.
    elastic : str
        "LEAST,MOST": the devices that jobs run on, over those that they request. If empty, only
        jobs with a range in the trace are elastic.
    load : float
        Arrival rate relative to the trace.
    risk : float
        Accepted probability that a job takes more memory than a release predicts.
    noise, bias : float
        Noise and bias of the factors applied to forecasts: see ``forecasters/noisy.py``.
    faults : str
        Fault file, "MTBF,MTTR" of nodes in days, or parameters of faults of devices, such as
        "mtbf=30,mttr=0.5,rate_spread=1"; no faults if empty.
    from_day : float
        Day of the fault file at which the trace starts.
    checkpoint_interval_s, checkpoint_cost_s, restart_s : float
        Checkpointing of jobs without checkpointing in the trace.
    resize_s, resize_after_failure_s : float
        Time for which an elastic job stops when it is resized, or when some of its devices fail:
        see :class:`presage.schedulers.simulator.resize_costs.ResizeCosts`.
    hazards : str
        File of the hazard model, for policies that read hazards; if empty, the pretrained model.
    quotas : Path or None
        File of the quotas and weights of users, for
        :func:`presage.schedulers.cluster_files.quota_file.read_quotas`.
    pass_interval_s : float
        Time between two scheduling passes; 0 for a decision at each event.
    keep_going : bool
        Whether to log impossible actions of the policy and continue; else they are errors.
    """

    trace: Path
    cluster: Path
    policy: str = "fifo"
    predictor: str = "oracle"
    seed: int = 0
    measured: Path | None = None
    draw_models: bool = False
    shares: str = "none"
    scaling: str = "linear"
    elastic: str = ""
    load: float = 1.0
    risk: float = 0.1
    noise: float = 0.0
    bias: float = 1.0
    faults: str = ""
    from_day: float = 0.0
    checkpoint_interval_s: float = math.inf
    checkpoint_cost_s: float = 0.0
    restart_s: float = 0.0
    resize_s: float = 0.06
    resize_after_failure_s: float = 0.5
    hazards: str = ""
    quotas: Path | None = None
    pass_interval_s: float = 0.0
    keep_going: bool = False

    def __post_init__(self) -> None:
        from presage.schedulers.policies.policy_registry import policy_of
        from presage.schedulers.simulator.ground_truth.measured_truth import SCALINGS, SHARES
        from presage.schedulers.traces.elastic import parse_range

        policy_of(self.policy)
        if self.elastic:
            parse_range(self.elastic)
        for field, is_valid, must_be in (
            ("seed", 0 <= self.seed < 2**63, "an integer >= 0 of at most 63 bits"),
            ("load", 0 < self.load < math.inf, "a finite number > 0"),
            ("risk", 0 < self.risk <= 0.5, "above 0 and at most 0.5, the median"),
            ("noise", 0 <= self.noise <= MOST_NOISE, f"within 0 and {MOST_NOISE:g}"),
            ("bias", 0 < self.bias <= MOST_BIAS, f"above 0 and at most {MOST_BIAS:,.0f}"),
            ("from_day", 0 <= self.from_day < math.inf, "a finite number >= 0"),
            ("checkpoint_interval_s", self.checkpoint_interval_s > 0, "a number > 0"),
            ("checkpoint_cost_s", 0 <= self.checkpoint_cost_s < math.inf, "a finite number >= 0"),
            ("restart_s", 0 <= self.restart_s < math.inf, "a finite number >= 0"),
            ("resize_s", 0 <= self.resize_s < math.inf, "a finite number >= 0"),
            ("pass_interval_s", 0 <= self.pass_interval_s < math.inf, "a finite number >= 0"),
            (
                "resize_after_failure_s",
                0 <= self.resize_after_failure_s < math.inf,
                "a finite number >= 0",
            ),
        ):
            if not is_valid:
                raise ConfigError(f"{field}={getattr(self, field)}, must be {must_be}")
        if self.predictor == "table" and self.measured is None:
            raise ConfigError("predictor 'table' needs tables; name their folder as `measured`")
        if self.shares not in SHARES:
            raise ConfigError(f"shares={self.shares!r}, must be one of {', '.join(SHARES)}")
        if self.shares != "none" and self.measured is None:
            raise ConfigError("shares needs measured tables; name their folder as `measured`")
        if self.scaling not in SCALINGS:
            raise ConfigError(f"scaling={self.scaling!r}, must be one of {', '.join(SCALINGS)}")
        if self.scaling != "linear" and self.measured is None:
            raise ConfigError("scaling needs measured tables; name their folder as `measured`")
        if self.draw_models and self.measured is None:
            raise ConfigError("draw_models needs measured tables; name their folder as `measured`")


def make_simulation(
    scenario: Scenario,
    *,
    trace: Trace | None = None,
    cluster: Cluster | None = None,
    policy: Policy | None = None,
    forecaster: Forecaster | None = None,
    switch_sharing: SwitchSharing | None = None,
    quotas: Quotas | None = None,
) -> Simulation:
    """Return a simulation of a scenario, ready to run.

    Parameters
    ----------
    trace, cluster, policy, forecaster, quotas : optional
        Objects to use in place of what the scenario names.
    switch_sharing : SwitchSharing, optional
        Effect of switches with in-network computing; by default there are none.

    Raises
    ------
    PresageError
        A file, a model name or the forecaster is missing or invalid, or a service is down.
    """
    from presage.schedulers.forecasters.outage_hazards import read_outage_hazards
    from presage.schedulers.policies.policy_registry import policy_of
    from presage.schedulers.simulator.resize_costs import ResizeCosts
    from presage.schedulers.simulator.simulation import Simulation

    cluster = cluster or load_cluster(scenario)
    trace = trace or load_trace(scenario)
    measurements = None
    if scenario.measured is not None:
        measurements = _measurements(scenario.measured, stamp(scenario.measured))
    jobs, ground_truth = _jobs_and_truth(scenario, cluster, trace, measurements)
    earlier, faults = _faults(scenario, cluster, trace, jobs)
    policy = policy or policy_of(scenario.policy)
    file = Path(scenario.hazards) if scenario.hazards else None
    return Simulation(
        cluster,
        policy,
        _forecaster(scenario, cluster, ground_truth, measurements, forecaster),
        ground_truth,
        jobs,
        faults=faults,
        earlier_outages=earlier,
        hazards=read_outage_hazards(file) if policy.needs.hazards else None,
        seed=scenario.seed,
        stop_on_impossible=not scenario.keep_going,
        pass_interval_s=scenario.pass_interval_s,
        resize_costs=ResizeCosts(scenario.resize_s, scenario.resize_after_failure_s),
        switch_sharing=switch_sharing,
        quotas=quotas or load_quotas(scenario),
    )


def load_trace(scenario: Scenario) -> Trace:
    """Return the trace of the scenario as in its file."""
    return _trace(scenario.trace, stamp(scenario.trace))


def load_cluster(scenario: Scenario) -> Cluster:
    """Return the cluster of the scenario as in its file."""
    return _cluster(scenario.cluster, stamp(scenario.cluster))


def load_quotas(scenario: Scenario) -> Quotas:
    """Return the quotas of the scenario as in its file; none without a file."""
    from presage.schedulers.cluster_files.quota_file import read_quotas
    from presage.schedulers.core.users.quota import NO_QUOTAS

    return NO_QUOTAS if scenario.quotas is None else read_quotas(scenario.quotas)


def stamp(path: Path) -> tuple[object, ...]:
    """Return a cache key that changes when a file, or a file of a folder, is written."""
    files = path.iterdir() if path.is_dir() else (path,) if path.exists() else ()
    written = tuple(sorted((file.name, file.stat().st_mtime_ns) for file in files))
    return (Path.cwd(), *written)


# Inputs that several scenarios of a process share are read once, until their files change.


@lru_cache(maxsize=8)
def _cluster(path: Path, _stamp: object) -> Cluster:
    from presage.schedulers.cluster_files.cluster_file import read_cluster

    return read_cluster(path)


@lru_cache(maxsize=4)
def _trace(path: Path, _stamp: object) -> Trace:
    from presage.schedulers.traces.formats import read_trace

    return read_trace(path)


@lru_cache(maxsize=4)
def _measurements(folder: Path, _stamp: object) -> Measurements:
    from presage.schedulers.simulator.ground_truth.model_measurements import read_measurements

    return read_measurements(folder)


@lru_cache(maxsize=4)
def _predictor(of: str, _stamp: object) -> Predictor:
    """Return a release loaded in this process, or a client of a service."""
    if Path(of).is_dir():
        from presage.serving.predictor.predictor import load_predictor

        return load_predictor(Path(of))
    client = make_client(of)
    client.release()  # fails here, before the simulation, if the service is unavailable
    return client


def get_served_release_id(of: str) -> str:
    """Return the id of the release that the service at HOST:PORT serves.

    Raises
    ------
    PresageError
        The text is not HOST:PORT, or no service responds there.
    """
    with make_client(of) as client:
        return client.release().release_id


def make_client(
    of: str, *, timeout_s: float = 5.0, credentials: Credentials | None = None
) -> PresageClient:
    """Return a client of the service at HOST:PORT, without connecting.

    Raises
    ------
    ConfigError
        The text is not HOST:PORT.
    """
    from presage.system.text.known_names import did_you_mean

    check_address(
        of,
        f"predictor {of!r}",
        f"predictor {of!r} is unknown; {did_you_mean(of, NO_RELEASE)} (or give a release folder, "
        "or HOST:PORT of a prediction server)",
    )
    from presage.serving.client.client import PresageClient

    return PresageClient(of, timeout_s=timeout_s, credentials=credentials)


def _jobs_and_truth(
    scenario: Scenario, cluster: Cluster, trace: Trace, measurements: Measurements | None
) -> tuple[list[Job], GroundTruth]:
    """Return the jobs as policies see them, and their ground truth.

    Traced durations apply to the kind of the cluster's first node.
    """
    from presage.schedulers.core.job import NO_COST, Checkpointing
    from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
    from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
    from presage.schedulers.simulator.ground_truth.model_measurements import attach_models
    from presage.schedulers.traces.elastic import parse_range, with_elastic_jobs
    from presage.schedulers.traces.selecting import scale_load

    ground_truth: GroundTruth = TraceDurations(trace.duration_s)
    if measurements is not None:
        kinds = list(cluster.kinds)
        if scenario.draw_models:
            trace = replace(trace, jobs=tuple(replace(job, model="") for job in trace.jobs))
        trace = attach_models(trace, measurements, kinds, seed=scenario.seed)
        ground_truth = MeasuredTruth(
            trace.duration_s, measurements, kinds[0], shares=scenario.shares,
            scaling=scenario.scaling,
        )  # fmt: skip
    trace = scale_load(trace, scenario.load)
    if scenario.elastic:
        trace = with_elastic_jobs(trace, *parse_range(scenario.elastic))
    costs = Checkpointing(
        scenario.checkpoint_interval_s, scenario.checkpoint_cost_s, scenario.restart_s
    )
    jobs = [
        replace(
            job,
            checkpointing=costs if job.checkpointing == NO_COST else job.checkpointing,
        )
        for job in trace.jobs
    ]
    return jobs, ground_truth


def _forecaster(
    scenario: Scenario,
    cluster: Cluster,
    ground_truth: GroundTruth,
    measurements: Measurements | None,
    given: Forecaster | None,
) -> Forecaster:
    from presage.schedulers.forecasters.forecast_table import Table
    from presage.schedulers.forecasters.no_forecasts import NoForecasts
    from presage.schedulers.forecasters.noisy import Noisy
    from presage.schedulers.forecasters.oracle import Oracle
    from presage.schedulers.forecasters.predicted import Predicted

    found: Forecaster
    if given is not None:
        found = given
    elif scenario.predictor == "none":
        return NoForecasts()
    elif scenario.predictor == "oracle":
        found = Oracle(ground_truth, cluster)
    elif scenario.predictor == "table" and measurements is not None:
        found = Table(measurements)
    else:
        found = Predicted(
            _predictor(scenario.predictor, stamp(Path(scenario.predictor))), risk=scenario.risk
        )
    if scenario.noise == 0 and scenario.bias == 1:
        return found
    return Noisy(found, spread=scenario.noise, bias=scenario.bias, seed=scenario.seed)


def _faults(
    scenario: Scenario, cluster: Cluster, trace: Trace, jobs: Sequence[Job]
) -> tuple[Sequence[Outage], tuple[Fault, ...]]:
    """Return the outages before the start, and the faults from then on."""
    if not scenario.faults:
        return (), ()
    from presage.schedulers.faults.device_fault_model import parse_device_faults
    from presage.schedulers.faults.fault import outages_to_faults
    from presage.schedulers.faults.fault_file import read_outages
    from presage.schedulers.faults.fault_model import FaultModel

    path = Path(scenario.faults)
    if path.exists():
        earlier, outages = read_outages(
            path, cluster, seed=scenario.seed, from_day=scenario.from_day
        )
        return earlier, outages_to_faults(outages)
    until_s = _fault_horizon_s(trace, jobs, cluster)
    if "=" in scenario.faults:
        model = parse_device_faults(scenario.faults)
        return (), model.draw(cluster, until_s, seed=scenario.seed)
    try:
        mtbf, mttr = (float(text) * DAY_S for text in scenario.faults.split(","))
    except ValueError:
        raise ConfigError(
            f"faults {scenario.faults!r} is neither a file nor two numbers of days; name a "
            "file, or give MTBF,MTTR such as 30,0.5"
        ) from None
    return (), FaultModel(mtbf, mttr).draw(len(cluster.nodes), until_s, seed=scenario.seed)


def _fault_horizon_s(trace: Trace, jobs: Sequence[Job], cluster: Cluster) -> float:
    """Return the end of drawn faults: all arrivals, then all work on a tenth of the devices."""
    if not jobs:
        return 0.0
    work_s = sum(trace.duration_s[job.job_id] * job.gpus for job in jobs)
    longest_s = max(trace.duration_s.values())
    return max(job.submit_s for job in jobs) + 10 * (longest_s + work_s / cluster.devices)
