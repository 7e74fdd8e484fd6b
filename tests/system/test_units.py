import pytest

from presage.system.text.units import quantity


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
