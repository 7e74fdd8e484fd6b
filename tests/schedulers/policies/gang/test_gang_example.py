"""The example of gang scheduling, as a user runs it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from presage.schedulers.policies.gang.gang_policy import Gang
from presage.schedulers.report.plan_picture import draw_plan
from tests.schedulers.clusters import cluster

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Return the printed output and the picture, run in another folder than the repository."""
    folder = tmp_path_factory.mktemp("example")
    done = subprocess.run(
        [sys.executable, ROOT / "examples/gang.py", "--picture", "plan.svg"],
        cwd=folder, env={**os.environ, "COLUMNS": "120"}, text=True, capture_output=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, (folder / "plan.svg").read_text()


def costs(printed):
    """Return interference, communication and total cost of each optimiser."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines()]
    return {row[0]: tuple(map(float, row[1:4])) for row in rows if len(row) == 5}


def test_no_plan_is_better_than_the_trees_and_frog_leaping_is_no_worse_than_greedy(shown):
    found = costs(shown[0])
    assert set(found) == {
        "tree", "frog-leaping", "as-published", "subtrees", "swaps", "greedy"
    }  # fmt: skip
    for interference, communication, cost in found.values():
        assert cost == pytest.approx(interference + communication, abs=2e-4)
    least = found["tree"][2]
    assert least == min(cost for *_, cost in found.values())
    assert least <= found["frog-leaping"][2] <= found["swaps"][2] <= found["greedy"][2]
    assert found["greedy"][2] > 1.5 * least  # the example shows a case where it matters


def test_the_plan_is_printed_by_member_and_drawn_with_all_jobs(shown):
    printed, drawn = shown
    rows = [line for line in printed.splitlines() if line.startswith(("│ n", "│ p"))]
    assert len(rows) == 8
    assert sum("over rack" in row for row in rows) == 2
    assert drawn.count("<!-- gang -->") == 8
    assert {f"<!-- {name} -->" in drawn for name in ("encoder 1", "rack a", "n4", "pix")} == {True}
    assert "<!-- 2 of the ring's edges over rack -->" in drawn


def test_the_guide_shows_the_printed_output(shown):
    guide = (ROOT / "docs/schedulers/gang_scheduling.md").read_text()
    for line in shown[0].splitlines():
        if line.startswith(("│ tree", "│ greedy", "│ n2/1")):
            assert line in guide


def test_the_guides_code_prints_the_shown_output(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code = (
        (ROOT / "docs/schedulers/gang_scheduling.md")
        .read_text()
        .split("```python\n")[1]
        .split("```")[0]
    )
    exec(code, {})
    expected = [line.split("# ")[1] for line in code.splitlines() if line.startswith("print(")]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    assert all(words.startswith(line) for words, line in zip(expected, printed, strict=True))


def test_the_guides_table_of_parameters_matches_the_policy():
    table = (
        (ROOT / "docs/schedulers/gang_scheduling.md")
        .read_text()
        .split("## Parameters")[1]
        .split("##")[0]
    )
    rows = [line.strip("| ").split(" | ")[:2] for line in table.splitlines() if "| `" in line]
    expected = {
        name: value
        for names, values in rows
        for name, value in zip(names.split(", "), values.split(", "), strict=True)
    }
    known = inspect.signature(Gang).parameters.values()
    assert {f"`{one.name}`" for one in known} == set(expected)
    for one in known:
        value = expected[f"`{one.name}`"].strip("`")
        assert one.default == (value if isinstance(one.default, str) else float(value))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--alpha", "0", "--beta", "0"], "error: gang: alpha=0 and beta=0"),
        (["--picture", "plan.txt"], "name a file that ends with .svg or .png"),
        (["--picture", "/nowhere/plan.png"], "error: [Errno 2]"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(arguments, expected):
    done = subprocess.run(
        [sys.executable, ROOT / "examples/gang.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("ring", [[1], [0, 2]])
def test_a_plan_is_drawn_for_a_cluster_without_a_topology(tmp_path, ring):
    path = tmp_path / "plan.png"
    draw_plan(
        path, cluster(2, 1), tenants=[(), ("a", "b"), ()], slowdowns=np.full(3, np.inf), ring=ring,
        title="",
    )  # fmt: skip
    assert path.read_bytes().startswith(b"\x89PNG")
