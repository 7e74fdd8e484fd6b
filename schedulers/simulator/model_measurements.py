"""What a folder of tables measured of models, as a simulated world knows it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from presage.errors import ConfigError

if TYPE_CHECKING:
    from pandas import DataFrame

    from presage.schedulers.simulator.measurements import Measurements
    from presage.schedulers.traces.trace import Trace


def read_measurements(folder: Path) -> Measurements:
    """Models of a campaign or an imported source: on whole devices alone, and together.

    Where one was measured several times, on several machines of a kind or in several campaigns,
    its median counts. Co-locations of members with a part of the device each are left out: of
    them it cannot be told what would be without the parts.

    Raises
    ------
    TableError
        A table is missing or damaged.
    """
    from presage.features.tables.campaign import read_campaign
    from presage.schedulers.simulator.measurements import Measurements

    campaign = read_campaign(folder)
    alone = campaign.executions[(campaign.executions["share"] == 1.0)]
    ran = alone[alone["failure"] == ""]

    def of(column: str) -> dict[Any, float]:
        known = ran.dropna(subset=[column])
        medians = known.groupby(["job_id", "device_kind"])[column].median()
        return {key: float(value) for key, value in medians.items()}

    together: dict[tuple[str, tuple[str, ...]], list[tuple[float, ...]]] = {}
    too_large = set()
    whole = campaign.colocations[campaign.colocations["share"] == 1.0]
    for _, rows in whole.groupby(["colocation_id", "machine", "campaign"]):
        ordered = rows.sort_values(["job_id", "member"])
        place = ordered["device_kind"].iloc[0], tuple(ordered["job_id"])
        if len(place[1]) != ordered["members"].iloc[0]:
            continue
        if not ordered["fits"].all():
            too_large.add(place)
        elif ordered["slowdown"].notna().all():
            together.setdefault(place, []).append(tuple(ordered["slowdown"]))
    return Measurements(
        features=campaign.jobs,
        step_s=of("step_time_median_s"),
        step_high_s=of("step_time_p90_s"),
        setup_s=of("setup_s"),
        busy=of("compute_utilization"),
        memory_bytes={key: int(value) for key, value in of("memory_peak_bytes").items()},
        slowdowns={
            place: tuple(median(of_one) for of_one in zip(*runs, strict=True))
            for place, runs in together.items()
        },
        too_large=frozenset(too_large),
        spread=spread_of(campaign.scale_out),
    )


def spread_of(scale_out: DataFrame) -> dict[tuple[str, str, int], float]:
    """Step time on several nodes over that on one, of jobs and device counts that have both."""
    from presage.features.device.node_spread import spread

    times: dict[tuple[str, str, int], dict[bool, list[float]]] = {}
    for row in scale_out.to_dict("records"):
        several = spread(row["nodes"], row["devices"], row["placement"]).nodes > 1
        of = times.setdefault((row["job_id"], row["device_kind"], row["devices"]), {})
        of.setdefault(several, []).append(row["step_time_s"])
    return {key: median(of[True]) / median(of[False]) for key, of in times.items() if len(of) == 2}


def with_models(
    trace: Trace, measurements: Measurements, kinds: Sequence[str], *, seed: int
) -> Trace:
    """The trace, with the model, features and iterations of every job.

    Who has no model has one of those that were timed on every one of ``kinds``, drawn as
    :func:`presage.schedulers.traces.assign.assigned` says. Where a user does not say how many
    iterations a job runs, it is as many as take its duration, less setup, where it was traced
    (:meth:`presage.schedulers.simulator.measurements.Measurements.traced_kind`).

    Raises
    ------
    ConfigError
        A job's model was not timed on all of ``kinds`` that the job may use; or none was on all of
        them, and one is to be drawn.
    """
    from presage.schedulers.traces.assign import assigned

    timed = {kind: set(measurements.models_on(kind)) for kind in kinds}

    def on_all(of: Sequence[str]) -> list[str]:
        found = sorted(set.intersection(*(timed[kind] for kind in of)))
        if not found:
            raise ConfigError(
                f"no model was timed on {' and '.join(of)}; measured are "
                f"{', '.join(measurements.kinds())}: give the cluster's nodes these kinds"
            )
        return found

    named = {
        (model, usable): measured_name(model, on_all([k for k in kinds if k in usable] or kinds))
        for model, usable in dict.fromkeys((j.model, j.kinds) for j in trace.jobs if j.model)
    }
    trace = replace(
        trace,
        jobs=tuple(replace(job, model=named.get((job.model, job.kinds), "")) for job in trace.jobs),
    )
    if not all(job.model for job in trace.jobs):
        trace = assigned(trace, on_all(kinds), seed)
    jobs = []
    for job in trace.jobs:
        on = job.model, measurements.traced_kind(job, kinds[0])
        stepping_s = trace.duration_s[job.job_id] - measurements.setup_s.get(on, 0.0)
        steps = job.iterations or max(1, round(stepping_s / measurements.step_s[on]))
        features = measurements.features[job.model]
        jobs.append(replace(job, iterations=steps, features=features))
    return replace(trace, jobs=tuple(jobs))


_GAVEL = re.compile(r"(?P<model>.*) \(batch size (?P<batch>\d+)\)")


def measured_name(model: str, measured: Sequence[str]) -> str:
    """Return the measured model that a trace names as the tables do, or as Gavel's traces.

    Raises
    ------
    ConfigError
        It is none of ``measured``; suggests a similar one.
    """
    from presage.system.known_names import did_you_mean

    if model in measured:
        return model
    said = _GAVEL.fullmatch(model)
    end = f"/{said['model']}/b{said['batch']}" if said else f"/{model}/b1"
    found = [name for name in measured if name.endswith(end)]
    if len(found) == 1:
        return found[0]
    raise ConfigError(
        f"model {model!r} of the trace was not measured; draw the models of its jobs, or name a "
        f"measured one: {did_you_mean(model, measured)}"
    )
