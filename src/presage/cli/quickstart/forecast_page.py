"""Page with a chart of one job's step time on several kinds of devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from presage.cli.quickstart.device_forecasts import DeviceForecast
from presage.system.text import units
from presage.system.text.page_templates import page_environment
from presage.system.text.units import quantity

# Marks of the logarithmic axis, in seconds.
_MARKS_S = [factor * 10.0**power for power in range(-6, 5) for factor in (1, 3)]


def forecast_page(title: str, facts: Mapping[str, str], found: Sequence[DeviceForecast]) -> str:
    """Return the page as HTML; equal forecasts give equal pages.

    Parameters
    ----------
    facts : mapping of str to str
        Shown under the title.
    found : sequence of DeviceForecast
        Rows of the chart, in order; at least one.
    """
    low, high = _ends(found)

    def position(seconds: float) -> float:
        """Return the position of a time on the axis, in %."""
        return round(100 * (math.log(max(seconds, low)) - math.log(low)) / math.log(high / low), 2)

    folder = Path(__file__).parent
    return (
        page_environment(folder)
        .get_template("forecast_page.html.j2")
        .render(
            title=title,
            facts=facts,
            coverage=f"{found[0].forecast.step_time_s.coverage:.0%}",
            marks=[(quantity(at, "seconds"), position(at)) for at in _MARKS_S if low < at < high],
            rows=[_row(one, position) for one in found],
        )
    )


def _ends(found: Sequence[DeviceForecast]) -> tuple[float, float]:
    """Return the ends of the axis in seconds, some way beyond all intervals."""
    low = min(one.forecast.step_time_s.low for one in found)
    high = max(one.forecast.step_time_s.high for one in found)
    low = max(low, 1e-9)
    return low / 1.3, max(high, low) * 1.3


def _row(one: DeviceForecast, position: Any) -> dict[str, Any]:
    step, memory = one.forecast.step_time_s, one.forecast.memory_bytes
    return {
        "kind": one.device.kind,
        "step": quantity(step.median, step.unit),
        "step_interval": units.interval(step.low, step.high, step.unit),
        "step_domain": step.domain_check,
        "begin": position(step.low),
        "at": position(step.median),
        "width": round(position(step.high) - position(step.low), 2),
        "runtime": quantity(one.forecast.runtime_s.median, "seconds"),
        "memory": quantity(memory.high, memory.unit),
        "memory_domain": memory.domain_check,
        "of": quantity(one.device.memory_bytes, "bytes"),
        "fits": "yes" if one.fits else "no",
    }
