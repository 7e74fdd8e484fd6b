"""Data stalls of jobs whose loading of samples was described."""

from __future__ import annotations

import math
from typing import Any

from presage.features.forecast import Forecast
from presage.features.job.data_loading import SMALL_STALL, STEP, LoadingForecast
from presage.system.text.units import counted, quantity

_Spread = tuple[float, float, float]  # median, low, high


def loading_lines(found: LoadingForecast) -> list[str]:
    """Return what to print of a job with loading."""
    loading, step_s = found.loading, found.solo_step.median
    pace = loading.bottleneck(step_s)
    lines = [
        f"step with data loading {_text(_spread(found.step_time_s))}"
        + ("" if pace == STEP else f", limited by the {pace}"),
        f"data stall {_text(found.ordered(loading.stall_s))} of each step, "
        f"{loading.stall_share(step_s):.0%} of its time",
        f"run time with data loading {_text(_spread(found.runtime_s))}",
        _workers_line(found),
    ]
    if math.isinf(loading.host_cores) and loading.cpu_s > 0:
        lines.append("host cores are not taken as a limit of loading; --host-cores gives them")
    return lines


def loading_figures(found: LoadingForecast) -> dict[str, Any]:
    """Return the entries of a JSON document for a job with loading."""
    loading, step = found.loading, found.solo_step
    return {
        "step_time_s": _json(_spread(found.step_time_s)),
        "runtime_s": _json(_spread(found.runtime_s)),
        "stall_s": _json(found.ordered(loading.stall_s)),
        "stall_share": _json(found.ordered(loading.stall_share)),
        "bottleneck": loading.bottleneck(step.median),
        "sufficient_workers": {
            "stall_share": SMALL_STALL,
            "median": loading.sufficient_workers(step.median),
            "high": loading.sufficient_workers(step.low),
        },
    }


def _workers_line(found: LoadingForecast) -> str:
    solo, limit = found.solo_step, f"keep the stall within {SMALL_STALL:.0%} of the step"
    median, most = map(found.loading.sufficient_workers, (solo.median, solo.low))
    if median is None:
        return f"no number of loader workers would {limit}"
    line = f"{counted(median, 'loader worker')} would {limit}"
    if most == median:
        return line
    return f"{line}; {'none' if most is None else most} at the lower bound of the step time"


def _spread(forecast: Forecast) -> _Spread:
    return forecast.median, forecast.low, forecast.high


def _text(values: _Spread) -> str:
    median, low, high = (quantity(value, "seconds") for value in values)
    return f"{median} ({low} to {high})"


def _json(values: _Spread) -> dict[str, float]:
    return dict(zip(("median", "low", "high"), values, strict=True))
