"""Formatting of numbers with their units."""

from __future__ import annotations

LONG_S = 600.0  # seconds from which times are shown in minutes


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 device", "2 devices"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def interval(low: float, high: float, unit: str) -> str:
    """Return both ends of an interval with their unit: in minutes if the upper one is."""
    if unit == "seconds" and low < LONG_S <= high:
        return f"{low / 60:.3g} min to {quantity(high, unit)}"
    return f"{quantity(low, unit)} to {quantity(high, unit)}"


def quantity(value: float, unit: str) -> str:
    """Return a number with its unit, in three significant digits.

    Bytes, seconds and fractions are scaled, a slowdown is a ratio; any other unit
    follows the number.
    """
    if unit == "bytes":
        return f"{value / 2**20:,.0f} MiB" if value < 2**33 else f"{value / 2**30:,.1f} GiB"
    if unit == "seconds":
        if value < 1:
            return f"{1e3 * value:.3g} ms"
        return f"{value:.3g} s" if value < LONG_S else f"{value / 60:.3g} min"
    if unit == "fraction":
        return f"{100 * value:.0f} %"
    return f"{value:.2f} x" if unit == "slowdown" else f"{value:.3g} {unit}"
