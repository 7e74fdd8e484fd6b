"""Formatting of numbers with their units."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 device", "2 devices"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
        return f"{value:.3g} s" if value < 600 else f"{value / 60:.3g} min"
    if unit == "fraction":
        return f"{100 * value:.0f} %"
    return f"{value:.2f} x" if unit == "slowdown" else f"{value:.3g} {unit}"
