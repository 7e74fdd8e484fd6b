"""Forecasts of jobs, and of jobs that share a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from presage.cli.output.derived.data_loading import loading_figures, loading_lines
from presage.cli.output.derived.llm_serving import serving_figures, serving_lines
from presage.cli.output.json_output import print_json
from presage.features.device.device import Device
from presage.features.forecast import (
    COLOCATED_JOBS,
    DEVICE,
    JOB,
    JOB_ON_DEVICE,
    PRECISION,
    UNKNOWN,
    Forecast,
)
from presage.features.job.data_loading import LoadingForecast
from presage.features.job.job_description import JobFeatures
from presage.features.quantities.quantity_registry import (
    COMPUTE_UTILIZATION,
    POWER,
    job_quantities,
)
from presage.serving.predictor.prediction_backend import ColocationForecast, JobForecast
from presage.system.text import units
from presage.system.text.terminal import Name, Table, print_table, say
from presage.system.text.units import quantity


def interval(forecast: Forecast) -> str:
    """Return a forecast as its median and interval."""
    ends = units.interval(forecast.low, forecast.high, forecast.unit)
    return f"{quantity(forecast.median, forecast.unit)}  ({ends})"


def print_forecasts(
    jobs: Sequence[JobFeatures],
    answers: Sequence[JobForecast],
    device: Device,
    loading: Sequence[LoadingForecast] = (),
    *,
    as_json: bool,
) -> None:
    """Print what each job does on the device without co-located jobs.

    ``loading`` has the forecast with data loading of each job, or is empty.
    """
    if as_json:
        rows = [_json_row(job, answer) for job, answer in zip(jobs, answers, strict=True)]
        for row, found in zip(rows, loading, strict=False):
            row["data_loading"] = loading_figures(found)
        print_json(_header(answers[0].step_time_s, device) | {"jobs": rows})
        return
    print_table(_forecast_table(jobs, answers, device))
    for job, answer in zip(jobs, answers, strict=True):
        _say_of(job, serving_lines(job, device, answer.step_time_s))
        _say_of(job, _energy_lines(answer))
    for job, found in zip(jobs, loading, strict=False):
        _say_of(job, loading_lines(found))
    _say_what_is_unknown({_label(name): one for name, one in answers[0].by_field().items()})
    for job, answer in zip(jobs, answers, strict=True):
        for field, forecast in answer.by_field().items():
            _say_correction(f"{_label(field)} of {_title(job)}", forecast)


def _forecast_table(
    jobs: Sequence[JobFeatures], answers: Sequence[JobForecast], device: Device
) -> Table:
    first = answers[0].step_time_s
    table = Table(title=f"Forecasts on {device.kind} by release {first.release_id}")
    table.add_column("job")
    table.add_column("quantity")
    table.add_column("median", justify="right")
    table.add_column(f"{first.coverage:.0%} interval")
    table.add_column("in domain")
    for job, answer in zip(jobs, answers, strict=True):
        table.add_section()
        for i, (field, forecast) in enumerate(answer.by_field().items()):
            name = Name("" if i else _title(job))
            table.add_row(name, _label(field), *_forecast_cells(forecast))
    return table


def print_colocation(
    jobs: Sequence[JobFeatures], answer: ColocationForecast, device: Device, *, as_json: bool
) -> None:
    """Print the slowdown that jobs on one device cause each other."""
    first = answer.slowdowns[0]
    if as_json:
        slowdowns = [
            {"name": job.job.name} | json_forecast(slowdown)
            for job, slowdown in zip(jobs, answer.slowdowns, strict=True)
        ]
        fits = {"fits": answer.fits, "fit_probability": answer.fit_probability}
        print_json(_header(first, device) | fits | {"slowdowns": slowdowns})
        return
    table = Table(title=f"Co-located on {device.kind}, by release {first.release_id}")
    table.add_column("job")
    table.add_column("slowdown", justify="right")
    table.add_column(f"{first.coverage:.0%} interval")
    table.add_column("in domain")
    for job, slowdown in zip(jobs, answer.slowdowns, strict=True):
        table.add_row(Name(_title(job)), *_forecast_cells(slowdown))
    print_table(table)
    _say_what_is_unknown({"slowdown": first})
    for job, slowdown in zip(jobs, answer.slowdowns, strict=True):
        _say_correction(f"slowdown of {_title(job)}", slowdown)
    verdict = "yes" if answer.fits else "no"
    say(f"fits in memory: {verdict} (probability {answer.fit_probability:.2f})")


_RUNS_OF = {
    JOB_ON_DEVICE: "of this job on this device",
    DEVICE: "on this device",
    PRECISION: "on this device at this precision",
    JOB: "of this job on other devices",
    COLOCATED_JOBS: "of the co-located jobs",
}


def _say_correction(what: str, forecast: Forecast) -> None:
    """Print what reported outcomes changed, if they changed anything."""
    found = forecast.correction
    if found is None:
        return
    runs = f"{found.runs} {'run' if found.runs == 1 else 'runs'} {_RUNS_OF.get(found.source, '')}"
    odds = "odds " if forecast.unit == COMPUTE_UTILIZATION.unit else ""
    say(f"{what}: {odds}corrected by {found.factor - 1:+.0%} after {runs.strip()}")


def _say_of(job: JobFeatures, lines: Sequence[str]) -> None:
    for line in lines:
        say(f"{_title(job)}: {line}")


def _title(job: JobFeatures) -> str:
    return f"{job.job.name}, batch {job.job.batch_size}"


def _label(forecast_field: str) -> str:
    """Return the label of a quantity; that of a newer server's quantity is its field."""
    known = job_quantities().get(forecast_field)
    return forecast_field if known is None else known.label


def _forecast_cells(forecast: Forecast) -> tuple[str, str, str]:
    ends = units.interval(forecast.low, forecast.high, forecast.unit)
    return quantity(forecast.median, forecast.unit), ends, forecast.domain_check


def _say_what_is_unknown(forecasts: Mapping[str, Forecast]) -> None:
    """Print of which quantities the domain check says little; forecasts are by label."""
    ratios = {
        label: forecast.domain_error_ratio
        for label, forecast in forecasts.items()
        if forecast.domain_check == UNKNOWN
    }
    if ratios:
        bounds = (min(ratios.values()), max(ratios.values()))
        ends = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in bounds))
        say(f"domain check of {', '.join(ratios)}: unknown")
        say(f"  (errors of flagged jobs were {ends} times those of others)")


def _header(first: Forecast, device: Device) -> dict[str, Any]:
    return {"release_id": first.release_id, "coverage": first.coverage, "device": device.kind}


def _json_row(job: JobFeatures, answer: JobForecast) -> dict[str, Any]:
    return {
        "name": job.job.name,
        "batch_size": job.job.batch_size,
        "iterations": job.job.iterations,
        **{field: json_forecast(forecast) for field, forecast in answer.by_field().items()},
        **serving_figures(job, answer.step_time_s),
        **_energy_per_step_j(answer),
    }


def _energy_per_step_j(answer: JobForecast) -> dict[str, float]:
    """Return the energy of a step by its JSON key; empty if no power was predicted."""
    power = answer.additional.get(POWER.forecast_field)
    return {} if power is None else {"step_energy_j": power.median * answer.step_time_s.median}


def _energy_lines(answer: JobForecast) -> list[str]:
    found = _energy_per_step_j(answer).values()
    return [f"{quantity(joules, 'joules')} per step, power x step time" for joules in found]


def json_forecast(forecast: Forecast) -> dict[str, Any]:
    """Return a forecast without the facts that the document has once."""
    content = asdict(forecast) | {"domain_check": forecast.domain_check}
    del content["release_id"], content["coverage"]
    if forecast.correction is None:
        del content["correction"]
    return content
