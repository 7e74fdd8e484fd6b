"""Reader of measured tables for the simulator, and assignment of measured models to jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from presage.errors import ConfigError

if TYPE_CHECKING:
    from pandas import DataFrame

    from presage.features.job.job_description import JobFeatures
    from presage.schedulers.simulator.ground_truth.measurements import Colocated, Measurements
    from presage.schedulers.simulator.ground_truth.scaling_curve import ScalingCurve
    from presage.schedulers.traces.trace import Trace


def read_measurements(folder: Path) -> Measurements:
    """Read the measurements of a campaign or an imported source: solo and co-located.

    The median is used where a model was measured several times, on several machines of a kind or in
    several campaigns. Co-locations with shares below a full device are skipped: they do not show
    the slowdown without such limits.

    Raises
    ------
    TableError
        A table is missing or corrupt.
    """
    from presage.features.tables.campaign import read_campaign
    from presage.schedulers.simulator.ground_truth.measurements import Measurements

    campaign = read_campaign(folder)
    exclusive = campaign.executions[campaign.executions["share"] == 1.0]
    succeeded = exclusive[exclusive["failure"] == ""]

    def median_by_model(column: str) -> dict[Any, float]:
        known = succeeded.dropna(subset=[column])
        medians = known.groupby(["job_id", "device_kind"])[column].median()
        return {key: float(value) for key, value in medians.items()}

    slowdowns: dict[Colocated, list[tuple[float, ...]]] = {}
    too_large = set()
    unlimited = campaign.colocations[campaign.colocations["share"] == 1.0]
    for _, rows in unlimited.groupby(["colocation_id", "machine", "campaign"]):
        ordered = rows.sort_values(["job_id", "member"])
        colocated = ordered["device_kind"].iloc[0], tuple(ordered["job_id"])
        if len(colocated[1]) != ordered["members"].iloc[0]:
            continue
        if not ordered["fits"].all():
            too_large.add(colocated)
        elif ordered["slowdown"].notna().all():
            slowdowns.setdefault(colocated, []).append(tuple(ordered["slowdown"]))
    memory_bytes = median_by_model("memory_peak_bytes")
    return Measurements(
        features=campaign.jobs,
        step_s=median_by_model("step_time_median_s"),
        step_high_s=median_by_model("step_time_p90_s"),
        setup_s=median_by_model("setup_s"),
        busy=median_by_model("compute_utilization"),
        memory_bytes={key: int(value) for key, value in memory_bytes.items()},
        slowdowns={
            colocated: tuple(median(member) for member in zip(*runs, strict=True))
            for colocated, runs in slowdowns.items()
        },
        too_large=frozenset(too_large),
        spread=multi_node_ratios(campaign.scale_out),
        scaling=scaling_curves(campaign.scale_out, campaign.jobs),
    )


def multi_node_ratios(scale_out: DataFrame) -> dict[tuple[str, str, int], float]:
    """Return the step time on several nodes over that on one, by model, kind and device count.

    Keys that were not measured both ways are left out.
    """
    from presage.features.device.node_spread import spread

    times: dict[tuple[str, str, int], dict[bool, list[float]]] = {}
    for row in scale_out.to_dict("records"):
        several = spread(row["nodes"], row["devices"], row["placement"]).nodes > 1
        step_s = times.setdefault((row["job_id"], row["device_kind"], row["devices"]), {})
        step_s.setdefault(several, []).append(row["step_time_s"])
    return {
        key: median(step_s[True]) / median(step_s[False])
        for key, step_s in times.items()
        if len(step_s) == 2
    }


def scaling_curves(
    scale_out: DataFrame, jobs: Mapping[str, JobFeatures]
) -> dict[tuple[str, str], ScalingCurve]:
    """Return the scaling curve of each job and kind; batch sizes of one model share a curve.

    Models without a step on one device are left out.

    Raises
    ------
    TableError
        A step time is not a finite number > 0.
    """
    from presage.features.device.node_spread import spread
    from presage.schedulers.simulator.ground_truth.scaling_curve import ScalingCurve, ScalingRow

    rows: dict[tuple[str, str, str], list[ScalingRow]] = {}
    names: dict[tuple[str, str], tuple[str, str, str]] = {}
    for row in scale_out.to_dict("records"):
        job, kind = jobs[row["job_id"]].job, row["device_kind"]
        nodes = spread(row["nodes"], row["devices"], row["placement"]).nodes
        model = names[row["job_id"], kind] = job.name, job.precision, kind
        step = ScalingRow(nodes, row["devices"], job.batch_size, row["step_time_s"])
        rows.setdefault(model, []).append(step)
    curves = {
        model: ScalingCurve(steps, model[0])
        for model, steps in rows.items()
        if any(step.devices == 1 for step in steps)
    }
    return {key: curves[model] for key, model in names.items() if model in curves}


def attach_models(
    trace: Trace, measurements: Measurements, kinds: Sequence[str], *, seed: int
) -> Trace:
    """Return the trace with the model, features and iterations of every job.

    A job without a model gets one that was timed on all ``kinds``, drawn by
    :func:`presage.schedulers.traces.assign.assign_models`. A job without iterations gets as many as
    take its duration, less setup, on its traced kind
    (:meth:`presage.schedulers.simulator.ground_truth.measurements.Measurements.traced_kind`).

    Raises
    ------
    ConfigError
        A job's model was not timed on all of ``kinds`` that the job may use; or a model is to be
        drawn and none was timed on all of them.
    """
    from presage.schedulers.traces.assign import assign_models

    timed = {kind: set(measurements.models_on(kind)) for kind in kinds}

    def timed_on_all(required: Sequence[str]) -> list[str]:
        found = sorted(set.intersection(*(timed[kind] for kind in required)))
        if not found:
            raise ConfigError(
                f"no model was timed on {' and '.join(required)}; measured kinds are "
                f"{', '.join(measurements.kinds())}: give the cluster's nodes these kinds"
            )
        return found

    names = {
        (model, usable): resolve_model_name(
            model, timed_on_all([kind for kind in kinds if kind in usable] or kinds)
        )
        for model, usable in dict.fromkeys((j.model, j.kinds) for j in trace.jobs if j.model)
    }
    trace = replace(
        trace,
        jobs=tuple(replace(job, model=names.get((job.model, job.kinds), "")) for job in trace.jobs),
    )
    if not all(job.model for job in trace.jobs):
        trace = assign_models(trace, timed_on_all(kinds), seed)
    jobs = []
    for job in trace.jobs:
        traced = job.model, measurements.traced_kind(job, kinds[0])
        stepping_s = trace.duration_s[job.job_id] - measurements.setup_s.get(traced, 0.0)
        steps = job.iterations or max(1, round(stepping_s / measurements.step_s[traced]))
        features = measurements.features[job.model]
        jobs.append(replace(job, iterations=steps, features=features))
    return replace(trace, jobs=tuple(jobs))


_GAVEL = re.compile(r"(?P<model>.*) \(batch size (?P<batch>\d+)\)")


def resolve_model_name(model: str, measured: Sequence[str]) -> str:
    """Return the measured model that a trace names as the tables or Gavel's traces do.

    Raises
    ------
    ConfigError
        The model is not in ``measured``; the message suggests a similar one.
    """
    from presage.system.text.known_names import did_you_mean

    if model in measured:
        return model
    match = _GAVEL.fullmatch(model)
    suffix = f"/{match['model']}/b{match['batch']}" if match else f"/{model}/b1"
    found = [name for name in measured if name.endswith(suffix)]
    if len(found) == 1:
        return found[0]
    raise ConfigError(
        f"model {model!r} of the trace was not measured; draw the models of its jobs, or name a "
        f"measured one: {did_you_mean(model, measured)}"
    )
