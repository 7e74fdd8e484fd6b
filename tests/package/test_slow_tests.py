"""The list of slow tests, and the choice of functions for it."""

from __future__ import annotations

from pathlib import Path

from tests.support.slow_tests import function_of, is_listed, listed, read_durations_s, slowest

ROOT = Path(__file__).parents[2]


def test_listed_functions_exist():
    missing = []
    for name in listed():
        path, _, function = function_of(name).partition("::")
        text = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
        if f"def {function}(" not in text:
            missing.append(name)
    assert not missing, "rename or remove these in tests/slow_tests.txt"


def test_a_test_is_listed_with_its_parameters_or_with_all_of_them():
    names = {"a.py::x", "a.py::y[1-two words]"}

    assert is_listed("a.py::x", names)
    assert is_listed("a.py::x[3]", names)
    assert is_listed("a.py::y[1-two words]", names)
    assert not is_listed("a.py::y[2-two words]", names)


def test_the_slowest_functions_are_listed_until_the_rest_is_fast():
    durations_s = {"a.py::x": 9.0, "a.py::y": 1.0, "b.py::z": 5.0, "b.py::w": 2.0}

    assert slowest(durations_s, (), 100.0) == frozenset()
    assert slowest(durations_s, (), 8.0) == {"a.py::x"}
    assert slowest(durations_s, ["b.py::z"], 8.0) == {"a.py::x", "b.py::z"}


def test_each_file_keeps_its_fastest_function_unless_that_is_slow():
    durations_s = {"a.py::x": 9.0, "a.py::y": 8.0, "b.py::z": 20.0}

    assert slowest(durations_s, (), 0.0) == {"a.py::x", "b.py::z"}


def test_durations_are_summed_over_parameters(tmp_path):
    file = tmp_path / "tests.xml"
    file.write_text(
        '<testsuites><testsuite><testcase classname="tests.a.test_b" name="test_c[1]" time="1.5"/>'
        '<testcase classname="tests.a.test_b" name="test_c[2]" time="2"/></testsuite></testsuites>'
    )
    assert read_durations_s(file) == {"tests/a/test_b.py::test_c": 3.5}
