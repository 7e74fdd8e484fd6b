"""Forecasts of a job on several GPUs."""

from __future__ import annotations

from typing import Any

from presage.cli.output.forecasts import json_forecast
from presage.cli.output.json_output import print_json
from presage.features.scaling.scaling_request import (
    GpuPlacement,
    ScalingForecast,
    ScalingForecasts,
    ScalingRequest,
)
from presage.system.text.terminal import Table, print_table, say
from presage.system.text.units import quantity


def print_scaling(request: ScalingRequest, answer: ScalingForecasts, *, as_json: bool) -> None:
    """Print the step time and the speed-up at each placement."""
    rows = list(zip(request.placements, answer.forecasts, strict=True))
    if as_json:
        print_json(
            {
                "release_id": answer.release_id,
                "coverage": answer.coverage,
                "device": request.device.kind,
                "law_fitted": answer.fitted,
                "placements": [_json_row(*row) for row in rows],
            }
        )
        return
    print_table(_table(request, answer))
    say(f"speed-ups refer to: {_size(request.requested)}")
    say(f"scaling law: {'of the release' if answer.fitted else 'built-in'}")


def _table(request: ScalingRequest, answer: ScalingForecasts) -> Table:
    table = Table(title=f"Scaling on {request.device.kind} by release {answer.release_id}")
    for name in ("GPUs", "nodes"):
        table.add_column(name, justify="right")
    for name in ("step time", "speed-up"):
        table.add_column(name, justify="right")
        table.add_column(f"{answer.coverage:.0%} interval")
    table.add_column("extrapolated")
    for placement, found in zip(request.placements, answer.forecasts, strict=True):
        step, speedup = found.step_time_s, found.speedup
        table.add_row(
            str(placement.gpus), str(placement.nodes),
            quantity(step.median, step.unit),
            f"{quantity(step.low, step.unit)} to {quantity(step.high, step.unit)}",
            f"{speedup.median:.2f}", f"{speedup.low:.2f} to {speedup.high:.2f}",
            "yes" if found.extrapolated else "no",
        )  # fmt: skip
    return table


def _size(placement: GpuPlacement) -> str:
    gpus, nodes = placement.gpus, placement.nodes
    return f"{gpus} GPU{'s' * (gpus > 1)} on {nodes} node{'s' * (nodes > 1)}"


def _json_row(placement: GpuPlacement, found: ScalingForecast) -> dict[str, Any]:
    return {
        "gpus": placement.gpus,
        "nodes": placement.nodes,
        "step_time_s": json_forecast(found.step_time_s),
        "speedup": json_forecast(found.speedup),
        "sync_share": found.sync_share,
        "extrapolated": found.extrapolated,
    }
