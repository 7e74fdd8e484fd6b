"""Python entry to the simulator: ``presage.simulate``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presage.errors import ConfigError
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.users.quota import Quotas
from presage.schedulers.policies.policy_registry import as_policy, policy_label
from presage.schedulers.simulator.results.result_tables import intervals_table, jobs_table
from presage.schedulers.simulator.results.schedule_metrics import Metrics, compute_metrics
from presage.schedulers.simulator.scenario import Scenario, make_simulation
from presage.schedulers.simulator.simulation import Simulation
from presage.schedulers.traces.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Outcome of one trace on one cluster under one policy.

    Attributes
    ----------
    policy : str
        Name of the policy, as in the column ``policy`` of the tables.
    metrics : Metrics
        Averages and counts, such as ``metrics.average_jct_s``.
    simulation : Simulation
        The simulation after its end, with its log and its ledger.
    """

    policy: str
    metrics: Metrics
    simulation: Simulation

    def jobs(self) -> pa.Table:
        """Return a row for each job, by submission; ``to_pandas()`` makes a data frame of it."""
        return jobs_table({self.policy: self.simulation})

    def intervals(self) -> pa.Table:
        """Return a row for each interval in which a job held a part of a device."""
        return intervals_table({self.policy: self.simulation})

    def log(self) -> Iterator[str]:
        """Return every event and decision, a line of JSON each."""
        return iter(self.simulation.log.lines())


def simulate(
    trace: Trace | Path | str,
    cluster: Cluster | Path | str,
    policy: Policy | str = "fifo",
    forecaster: Forecaster | Path | str = "oracle",
    **options: Any,
) -> SimulationResult:
    """Simulate a trace of jobs on a cluster under a policy.

    Parameters
    ----------
    trace, cluster : object or path of a file
        Files are as in ``presage simulate --trace`` and ``--cluster``.
    policy : Policy or str
        An object, or what ``--policy`` takes: a name or ``module:Class``, with parameters.
    forecaster : Forecaster or str
        An object, or ``oracle``, ``none``, ``table``, the folder of a release, or HOST:PORT of a
        prediction service.
    **options
        Other attributes of :class:`presage.schedulers.simulator.scenario.Scenario`, such as
        ``seed``, ``measured``, ``load``, ``faults`` or ``checkpoint_cost_s``; ``quotas`` may also
        be a :class:`presage.schedulers.core.users.quota.Quotas`.

    Returns
    -------
    SimulationResult

    Raises
    ------
    PresageError
        A file, the policy, the forecaster or an option is wrong.
    ImpossibleActionError
        The policy decided an action that the cluster cannot do, without ``keep_going=True``.

    Examples
    --------
    >>> from presage import simulate
    >>> from presage.schedulers.core.cluster import Cluster, Node
    >>> from presage.schedulers.core.job import Job
    >>> from presage.schedulers.traces.trace import Trace
    >>> cluster = Cluster((Node("n0", 2, "v100", 16 * 2**30),))
    >>> jobs = (Job("wide", 0.0, gpus=2), Job("long", 1.0), Job("short", 2.0))
    >>> trace = Trace(jobs, {"wide": 10.0, "long": 90.0, "short": 30.0})
    >>> simulate(trace, cluster, "sjf").metrics.average_jct_s
    49.0
    >>> simulate(trace, cluster, "fifo").jobs().column("end_s").to_pylist()
    [10.0, 100.0, 40.0]
    """
    made = as_policy(policy)
    quotas = options.pop("quotas") if isinstance(options.get("quotas"), Quotas) else None
    for name in ("measured", "quotas"):
        if options.get(name) is not None:
            options[name] = Path(options[name])
    is_named = isinstance(forecaster, str | Path)
    scenario = Scenario(
        trace=Path() if isinstance(trace, Trace) else Path(trace),
        cluster=Path() if isinstance(cluster, Cluster) else Path(cluster),
        predictor=str(forecaster) if is_named else "oracle",
        **options,
    )
    simulation = make_simulation(
        scenario,
        trace=_by_submission(trace) if isinstance(trace, Trace) else None,
        cluster=cluster if isinstance(cluster, Cluster) else None,
        policy=made,
        forecaster=None if isinstance(forecaster, str | Path) else forecaster,
        quotas=quotas,
    )
    simulation.run()
    return SimulationResult(policy_label(policy), compute_metrics(simulation), simulation)


def _by_submission(trace: Trace) -> Trace:
    missing = [job.job_id for job in trace.jobs if job.job_id not in trace.duration_s]
    if missing:
        raise ConfigError(f"trace: job {missing[0]!r} has no duration; add it to duration_s")
    jobs = sorted(trace.jobs, key=lambda job: job.submit_s)
    return replace(trace, jobs=tuple(jobs))
