"""Answers as a person reads them (tables) and as a program does (JSON)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presage.features.columns.schema import columns, matrix
from presage.features.device.device import Device
from presage.features.forecast import Forecast
from presage.features.job.job import JobFeatures
from presage.features.placement import Placement
from presage.serving.client.job_features import to_json
from presage.serving.predictor.forecasts import ColocationForecast, JobForecast
from presage.system.terminal import Console, Table, styled
from presage.system.units import quantity

if TYPE_CHECKING:
    from presage.pipelines.evaluation.assessment import Assessment
    from presage.pipelines.importers.run import Summary
    from presage.pipelines.profiling.campaign.merge import Merged
    from presage.pipelines.stages.ingest import Ingested


def print_json(content: Any) -> None:
    """JSON on standard output, and nothing else."""
    print(json.dumps(content, indent=2))  # noqa: T201


def interval(forecast: Forecast) -> str:
    """Median and interval."""
    low, high = (quantity(v, forecast.unit) for v in (forecast.low, forecast.high))
    return f"{quantity(forecast.median, forecast.unit)}  ({low} to {high})"


def print_merged(merged: Merged, folder: Path, *, as_json: bool) -> None:
    """How many rows a merged campaign has."""
    if as_json:
        print_json(asdict(merged))
        return
    counts = ", ".join(f"{rows} {name}" for name, rows in merged.rows.items())
    Console().print(f"{folder}: {counts}")
    if merged.duplicates:
        Console().print(f"{merged.duplicates} rows were measured twice; the quieter is kept")


def print_ingested(done: Ingested, folder: Path, *, as_json: bool) -> None:
    """What became of the outcomes of logs."""
    if as_json:
        print_json(asdict(done))
        return
    table = Table(title=f"{done.outcomes:,} outcomes in the logs")
    for name in ("", "what", "rows"):
        table.add_column(name, justify="right" if name == "rows" else "left")
    used = done.rows["outcomes"] - done.failed - done.untaught
    for kind, counts in (
        ("used", {"measured": used, "failed": done.failed, "taught nothing": done.untaught}),
        ("not used", {"sent again": done.sent_again} | done.quarantined),
        ("written", {name: rows for name, rows in done.rows.items() if rows}),
    ):
        for i, (what, rows) in enumerate(counts.items()):
            table.add_row("" if i else kind, what, f"{rows:,}")
    Console().print(table)
    Console().print(f"{folder}: the next `dvc repro` learns from it")
    if done.quarantined:
        Console().print("quarantine.jsonl there says what was not used, and why")


def print_features(job: JobFeatures, device: Device, feature_set: str, *, as_json: bool) -> None:
    """Operators and feature values of a job on a device."""
    values = matrix([Placement(job, device)], feature_set)[0]
    named = dict(zip(columns(feature_set), (float(v) for v in values), strict=True))
    if as_json:
        print_json(json.loads(to_json(job)))
        return
    console = Console()
    ops = Table(title=f"{job.job.name}, one step at batch size {job.job.batch_size}")
    for name in ("kind", "phase", "operators", "largest input", "GFLOP", "MB moved"):
        ops.add_column(name, justify="left" if name in ("kind", "phase") else "right")
    by_kind: dict[tuple[str, str], list[float]] = {}
    for row in job.op_stats:
        sums = by_kind.setdefault((row.kind, row.phase), [0.0, 0.0, 0.0, 0.0])
        sums[0] += row.count
        sums[1] = max(sums[1], row.input_elements_max)
        sums[2] += row.flops
        sums[3] += row.bytes_moved
    for (kind, phase), (count, largest, flops, moved) in sorted(
        by_kind.items(), key=lambda item: -item[1][3]
    ):
        ops.add_row(
            kind, phase, f"{count:.0f}", f"{largest:,.0f}", f"{flops / 1e9:,.3f}",
            f"{moved / 1e6:,.2f}",
        )  # fmt: skip
    console.print(ops)
    table = Table(title=f"feature set {feature_set!r} on {device.kind}")
    table.add_column("column")
    table.add_column("value", justify="right")
    for name, value in named.items():
        table.add_row(name, f"{value:,.6g}")
    console.print(table)
    roofline_s = matrix([Placement(job, device)])[0, columns("full").index("roofline_s")]
    console.print(
        f"{job.parameters:,} parameters, {quantity(job.peak_live_bytes, 'bytes')} of live tensors, "
        f"roofline step time {quantity(roofline_s, 'seconds')} on {device.kind}"
    )
    unknown = sum(row.count for row in job.op_stats if row.kind == "Other")
    if unknown:
        console.print(styled(f"{unknown} operators are of no known kind: out of domain", "yellow"))


def forecast_json(forecast: Forecast) -> dict[str, Any]:
    """A forecast without what the whole answer says once."""
    content = asdict(forecast)
    del content["release_id"], content["coverage"]
    return content


def print_forecasts(
    jobs: Sequence[JobFeatures],
    answers: Sequence[JobForecast],
    device: Device,
    *,
    as_json: bool,
) -> None:
    """What each job will do alone on the device."""
    first = answers[0].step_time_s
    if as_json:
        print_json(
            {
                "release_id": first.release_id,
                "coverage": first.coverage,
                "device": device.kind,
                "jobs": [
                    {
                        "name": job.job.name,
                        "batch_size": job.job.batch_size,
                        "iterations": job.job.iterations,
                        "compute_utilization": forecast_json(answer.compute_utilization),
                        "memory_bytes": forecast_json(answer.memory_bytes),
                        "step_time_s": forecast_json(answer.step_time_s),
                        "runtime_s": forecast_json(answer.runtime_s),
                    }
                    for job, answer in zip(jobs, answers, strict=True)
                ],
            }
        )
        return
    table = Table(title=f"forecasts on {device.kind} ({first.coverage:.0%} interval)")
    for name in ("job", "compute", "memory", "step time", "runtime", "in domain"):
        table.add_column(name)
    for job, answer in zip(jobs, answers, strict=True):
        table.add_row(
            f"{job.job.name}, batch {job.job.batch_size}",
            interval(answer.compute_utilization),
            interval(answer.memory_bytes),
            interval(answer.step_time_s),
            interval(answer.runtime_s),
            _in_domain(answer),
        )
    Console().print(table)


def _in_domain(answer: JobForecast) -> str:
    """Yes or no; of a device on which not everything was measured, what was not."""
    inside = {
        "compute": answer.compute_utilization.in_domain,
        "memory": answer.memory_bytes.in_domain,
        "step time": answer.step_time_s.in_domain,
    }
    outside = [name for name, is_inside in inside.items() if not is_inside]
    if not outside:
        return "yes"
    return "no" if len(outside) == len(inside) else f"not {', '.join(outside)}"


def print_colocation(
    jobs: Sequence[JobFeatures], answer: ColocationForecast, device: Device, *, as_json: bool
) -> None:
    """What jobs on one device do to each other."""
    first = answer.slowdowns[0]
    if as_json:
        print_json(
            {
                "release_id": first.release_id,
                "coverage": first.coverage,
                "device": device.kind,
                "fits": answer.fits,
                "fit_probability": answer.fit_probability,
                "slowdowns": [
                    {"name": job.job.name} | forecast_json(slowdown)
                    for job, slowdown in zip(jobs, answer.slowdowns, strict=True)
                ],
            }
        )
        return
    table = Table(title=f"together on {device.kind} ({first.coverage:.0%} interval)")
    for name in ("job", "slowdown", "in domain"):
        table.add_column(name)
    for job, slowdown in zip(jobs, answer.slowdowns, strict=True):
        table.add_row(
            f"{job.job.name}, batch {job.job.batch_size}",
            interval(slowdown),
            "yes" if slowdown.in_domain else "no",
        )
    console = Console()
    console.print(table)
    verb = "fit" if answer.fits else "do not fit"
    console.print(f"they {verb} in memory (probability of fitting {answer.fit_probability:.2f})")


def print_import(summary: Summary, *, as_json: bool) -> None:
    """Rows of each table that an import wrote, and what it left out and why."""
    if as_json:
        print_json(asdict(summary))
        return
    title = f"{summary.source} ({summary.licence}) in {summary.folder}"
    table = Table(title=title, caption=summary.url)
    for name in ("", "what", "rows"):
        table.add_column(name, justify="right" if name == "rows" else "left")
    for kind, counts in (
        ("written", summary.tables), ("left out", summary.skipped), ("note", summary.notes),
    ):  # fmt: skip
        for what, rows in counts.items():
            table.add_row(kind, what, f"{rows:,}")
    Console().print(table)


def print_assessment(assessment: Assessment, report: Path | None, *, as_json: bool) -> None:
    """Error of each predictor by split, beside the baselines, and in and out of its domain."""
    if as_json:
        print_json(assessment.as_json())
        return
    console = Console()
    for predictor in assessment.judged:
        splits = assessment.metrics[predictor]
        table = Table(title=predictor.replace("_", " "))
        for name in ("not seen", "model", *_FIGURES):
            table.add_column(name, justify="left" if name in ("not seen", "model") else "right")
        for split in sorted(splits, reverse=True):  # jobs before families
            for model, found in _ours_first(splits[split]).items():
                table.add_row(split, model.replace("_", " "), *_cells(found))
            table.add_section()
        domain = assessment.error_by[predictor]["domain"]
        for row in domain.sort_values(["split", "domain"], ascending=[False, True]).to_dict(
            "records"
        ):
            if row["domain"] != "not said":
                who = f"mlp, {row['rows']} {row['domain']}"
                table.add_row(str(row["split"]), who, *_cells(row))
        console.print(table)
    if report is not None:
        console.print(f"{report}: the whole evaluation as a page")


# Heading -> figure and digits. An interval's figures are the baselines' not.
_FIGURES = {
    "MAPE %": ("mape", 1),
    "median %": ("median_ape", 1),
    "within 10 %": ("within_10pct", 0),
    "in 80 %": ("coverage_80%", 0),
    "80 % width": ("interval_width_80%", 0),
    "in 90 %": ("coverage_90%", 0),
    "90 % width": ("interval_width_90%", 0),
}


def _ours_first(models: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(models.items(), key=lambda item: (not item[0].startswith("mlp"), item[0])))


def _cells(found: Mapping[Any, Any]) -> list[str]:
    return [f"{found[k]:,.{digits}f}" if k in found else "" for k, digits in _FIGURES.values()]
