import pytest

from presage.system.text.units import interval, quantity


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.01234, "seconds", "12.3 ms"),
        (1.5, "seconds", "1.5 s"),
        (1200, "seconds", "20 min"),
        (2**28, "bytes", "256 MiB"),
        (2**34, "bytes", "16.0 GiB"),
        (0.834, "fraction", "83 %"),
        (1.5, "slowdown", "1.50 x"),
        (12.345, "joules", "12.3 joules"),
    ],
)
def test_numbers_are_formatted_with_readable_units(value, unit, text):
    assert quantity(value, unit) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (390, 654, "6.5 min to 10.9 min"),
        (390, 599, "390 s to 599 s"),
        (0.9, 1.2, "900 ms to 1.2 s"),
        (700, 1300, "11.7 min to 21.7 min"),
    ],
)
def test_an_interval_that_ends_after_minutes_is_in_minutes(low, high, text):
    assert interval(low, high, "seconds") == text
