"""The slow tier: tests that ``make test`` skips, and ``make test-all`` and CI run.

Long fault runs have the mark :data:`all_faults`. Other tests that take long are listed in
``tests/slow_tests.txt``, by file and function, or with their parameters if others stay fast. After
tests were added or became slower, run

    pytest --junitxml=build/tests.xml
    python -m tests.support.slow_tests build/tests.xml

which adds the slowest functions to the list until the rest takes as long as the fast tier may. Each
file keeps its fastest function, unless that one is slow itself. Tests that are named on the command
line of pytest are run in any case.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import settings

IS_ALL = os.environ.get("PRESAGE_TEST_FAULTS") == "all"
LIST = Path(__file__).parents[1] / "slow_tests.txt"
FAST_TIER_S = 600.0  # of all workers together
SLOW_S = 10.0  # the fastest function of a file is listed too if it takes longer than this

# What takes long and adds little to the rest.
all_faults = pytest.mark.skipif(not IS_ALL, reason="slow; make test-all runs it")


def examples(count: int) -> int:
    """Return how many of ``count`` examples (of 100 by default) this tier tests a law with."""
    return max(min(count, 5), count * settings().max_examples // 100)


def listed() -> frozenset[str]:
    """Return the listed tests as ``path::function`` or ``path::function[parameters]``."""
    return frozenset(LIST.read_text().splitlines())


def is_listed(node_id: str, names: Collection[str]) -> bool:
    """Whether a test is listed, with its parameters or with all of them."""
    return node_id in names or function_of(node_id) in names


def function_of(node_id: str) -> str:
    """Return the file and function of a test, without its parameters."""
    return node_id.partition("[")[0]


def slowest(
    durations_s: Mapping[str, float], known: Collection[str], limit_s: float
) -> frozenset[str]:
    """Return the functions to list, so that the others take at most ``limit_s`` seconds."""
    fastest: dict[str, str] = {}
    for name in sorted(durations_s, key=durations_s.__getitem__, reverse=True):
        fastest[name.partition("::")[0]] = name
    kept = {name for name in fastest.values() if durations_s[name] <= SLOW_S}
    found = set(known)
    left_s = sum(time_s for name, time_s in durations_s.items() if name not in found)
    for name in sorted(durations_s, key=durations_s.__getitem__, reverse=True):
        if left_s <= limit_s:
            break
        if name not in found and name not in kept:
            found.add(name)
            left_s -= durations_s[name]
    return frozenset(found)


def read_durations_s(path: Path) -> dict[str, float]:
    """Return the time of each function in a JUnit file, over its parameters."""
    durations_s: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(path).getroot().iterfind(".//testcase[@classname]"):
        parts = case.attrib["classname"].split(".")
        name = case.attrib["name"].partition("[")[0]
        durations_s["/".join(parts) + f".py::{name}"] += float(case.attrib["time"])
    return dict(durations_s)


def main() -> None:
    """Add to the list what the JUnit file on the command line calls for."""
    found = slowest(read_durations_s(Path(sys.argv[1])), listed(), FAST_TIER_S)
    LIST.write_text("\n".join(sorted(found)) + "\n")


if __name__ == "__main__":
    main()
