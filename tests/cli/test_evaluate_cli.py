"""``presage evaluate`` as a person meets it: what it prints, writes and refuses."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from presage.features.quantities.quantity_registry import QUANTITIES
from tests.cli.test_cli import presage
from tests.pipelines.evaluation.forecast_examples import forecasts, metrics_of, store
from tests.support import in_process


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """A folder as the stages leave it, but for the features."""
    folder = tmp_path_factory.mktemp("stages")
    told = forecasts()
    store(told, folder / "data/models")
    (folder / "data/evaluation").mkdir()
    (folder / "data/evaluation/metrics.json").write_text(json.dumps(metrics_of(told)))
    return folder


@pytest.fixture(scope="module")
def evaluated(stages, tmp_path_factory):
    """After a first look: tables that a page is drawn from are there."""
    folder = tmp_path_factory.mktemp("evaluated")
    shutil.copytree(stages / "data", folder / "data")
    assert presage("evaluate", cwd=folder).returncode == 0
    return folder


@pytest.fixture
def folder(stages, tmp_path):
    shutil.copytree(stages / "data", tmp_path / "data")
    return tmp_path


def refused(folder, *arguments):
    """The line that it is refused with."""
    before = sorted(folder.rglob("*"))
    done = in_process.presage("evaluate", *arguments, cwd=folder, COLUMNS="160")

    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(folder.rglob("*")) == before  # nothing half-written
    return done.stderr


def test_evaluate_prints_tables_and_writes_a_page(folder):
    done = presage("evaluate", "--report", "out.html", cwd=folder)

    assert done.returncode == 0, done.stderr
    for words in ("step time", "boosted trees", "10 out of domain", "80 % width"):
        assert words in done.stdout
    assert done.stdout.endswith("out.html: the whole evaluation as a page\n")
    assert (folder / "out.html").read_text().startswith("<!doctype html>")


def test_json_output_is_only_json(folder):
    done = presage("evaluate", "--json", "--report", "out.html", cwd=folder)

    assert json.loads(done.stdout)["metrics"] == metrics_of(forecasts())
    assert (folder / "out.html").is_file()


def test_plots_of_dvc_are_written_and_metrics_stay_unchanged(folder):
    before = json.loads((folder / "data/evaluation/metrics.json").read_text())
    presage("evaluate", cwd=folder)
    plots = folder / "data/evaluation/plots"

    assert json.loads((folder / "data/evaluation/metrics.json").read_text()) == before
    assert len(list(plots.glob("error_by_*/*.csv"))) == 3 * len(QUANTITIES)
    assert set(pd.read_csv(plots / "error_by_domain/memory.csv")["domain"]) == {
        "in domain",
        "out of domain",
    }


def test_baselines_of_other_forecasts_are_not_used(folder):
    path = folder / "data/models/memory/forecasts.parquet"
    table = pd.read_parquet(path)
    table["q0.5"] = table["q0.5"] * 1.000001
    table.to_parquet(path)

    # Baselines would have to be fitted to features that are missing.
    assert (
        "data/features/solo.parquet: no such table; run the stage before with `dvc repro`"
        in refused(folder)
    )


def test_a_missing_table_is_named(folder):
    (folder / "data/models/step_time/forecasts.parquet").unlink()

    assert "data/models/step_time/forecasts.parquet: no such table; run the stage" in refused(
        folder
    )


def test_a_damaged_table_is_named(folder):
    (folder / "data/models/memory/forecasts.parquet").write_bytes(b"PAR1 and then nothing")

    assert "data/models/memory/forecasts.parquet: not a readable parquet file" in refused(folder)


def damage(folder, change):
    path = folder / "data/models/memory/forecasts.parquet"
    change(pd.read_parquet(path)).to_parquet(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop(columns=["q0.9", "fold"]), "no column 'fold' (2 of 15 missing); delete"),
        (lambda t: t.assign(measured="much"), "column 'measured' has type str, must be numeric"),
        (lambda t: t.assign(**{"q0.1": np.nan}), "row 0 has a quantile that is not finite"),
        (lambda t: t.assign(measured=np.nan), "no measured row of split 'job'"),
        (lambda t: t[t["split"] == "job"], "no measured row of split 'family'"),
        (lambda t: t.head(0), "no measured row of split 'job'"),
    ],
)
def test_an_unusable_table_is_named_with_the_fix(folder, change, said):
    damage(folder, change)
    line = refused(folder, "--report", "out.html")

    assert f"data/models/memory/forecasts.parquet: {said}" in line
    assert "dvc repro" in line


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ("absent/out.html", "folder absent does not exist; create it first"),
        ("data", "is a folder; give a file"),
        ("/proc/out.html", "cannot be written"),
    ],
)
def test_an_invalid_path_of_the_page_is_rejected(evaluated, report, said):
    line = refused(evaluated, "--report", report)
    assert line.startswith(f"error: --report {report}: ")
    assert said in line
