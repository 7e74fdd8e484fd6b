"""Evaluation page as text: content, reproducibility, and errors of writing it."""

import json
import re

import pandas as pd
import pytest

from presage.errors import ConfigError
from presage.pipelines.evaluation.assessment import assess
from presage.pipelines.evaluation.report import charts
from presage.pipelines.evaluation.report.evaluation_page import (
    coverage_mark,
    mae,
    percent,
    render,
    write_report,
)
from presage.pipelines.stages.stage import check_report_path
from tests.pipelines.evaluation.forecast_examples import forecasts, metrics_of

LARGEST = 3_000_000


@pytest.fixture(scope="module")
def assessment():
    told = forecasts()
    return assess(metrics_of(told), told)


@pytest.fixture(scope="module")
def page(assessment):
    return render(assessment)


def test_equal_forecasts_give_equal_bytes(page):
    told = forecasts()
    metrics = json.loads(json.dumps(metrics_of(told), sort_keys=True))

    assert render(assess(metrics, told)) == page


def test_the_page_loads_nothing_from_outside(page):
    assert not re.search(r"""(?:src|href|url\(|@import)\s*=?\s*["'(]?\s*(?:https?:)?//""", page)
    assert "<script" not in page
    assert "default-src 'none'" in page


def test_text_of_a_table_is_escaped_on_the_page(page):
    assert "no other family has &lt;b&gt;attention&lt;/b&gt;" in page
    assert "<b>attention" not in page


def test_a_column_marks_the_best_value_at_the_displayed_precision(assessment):
    told = forecasts()
    metrics = metrics_of(told)
    metrics["memory"]["job"]["mlp"]["mape"] = 5.04
    metrics["memory"]["job"]["linear"]["mape"] = 4.96
    page = render(assess(metrics, told))

    for model in ("mlp", "linear"):
        assert re.search(rf'<td class="best" data-figure="memory.job.{model}.mape"', page)


def test_the_card_compares_with_the_best_baseline():
    told = forecasts()
    metrics = metrics_of(told)
    found = metrics["step_time"]["job"]
    found["mlp"]["median_ape"], found["boosted_trees"]["median_ape"] = 14.52, 14.83

    assert "worse than" in render(assess(metrics, told))
    found["linear"]["median_ape"] = found["constant"]["median_ape"] = 99.0
    assert "0.3 points better than boosted trees" in render(assess(metrics, told))
    found["boosted_trees"]["median_ape"] = 14.53
    assert "level with boosted trees" in render(assess(metrics, told))


def test_a_model_of_another_name_has_its_row(page):
    told = forecasts()
    metrics = metrics_of(told)
    metrics["memory"]["job"]["nearest_neighbour"] = dict(metrics["memory"]["job"]["linear"])

    assert ">nearest neighbour<" in render(assess(metrics, told))
    assert ">nearest neighbour<" not in page


def test_forecasts_without_a_domain_have_a_page_that_states_it():
    told = forecasts(domain=False)
    page = render(assess(metrics_of(told), told))

    assert page.count("have no out-of-domain flag") == 4
    assert ">out of domain<" not in page


def test_a_page_of_a_hundred_times_the_rows_is_still_small():
    told = forecasts()
    many = {
        predictor: pd.concat(
            [t.assign(job_id=t["job_id"] + f"/copy-{i}") for i in range(100)], ignore_index=True
        )
        for predictor, t in told.items()
    }
    page = render(assess(metrics_of(told), many))

    assert len(page.encode()) < LARGEST
    assert f"; {charts.MOST_POINTS:,} are drawn, sampled evenly" in page


def test_json_holds_the_same_tables_and_only_json_numbers(assessment):
    said = json.loads(json.dumps(assessment.as_json(), allow_nan=False))

    assert said["metrics"] == assessment.metrics
    assert said["error_by"]["memory"].keys() == {"family", "device", "domain"}
    worst = said["worst"]["interference"][0]
    assert {"job_id", "measured", "predicted", "inside", "why", "together"} <= worst.keys()
    assert len(said["worst"]["memory"]) == 20
    assert len(said["calibration"]) == 4 * 2 * 5


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.456, "3.5"), (997.4, "997.4"), (1104.8, "1,105"), (float("inf"), "-"), (0.0, "0.0")],
)
def test_percentages(value, text):
    assert percent(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.0405, "fraction", "4.0 points"), (0.0098, "seconds", "9.8 ms"), (2**24, "bytes", "16 MiB")],
)
def test_a_mean_error_has_its_unit(value, unit, text):
    assert mae(value, unit) == text


@pytest.mark.parametrize(
    ("value", "rows", "mark"),
    [
        (79, 331, ""),
        (74, 331, "under"),
        (86, 331, "over"),
        (70, 20, ""),  # two standard errors of 20 rows are 18 points
        (44, 27, "under"),
        (75.5, 10_000, ""),  # more than chance, but not worth a mark
    ],
)
def test_a_significantly_wrong_coverage_is_marked(value, rows, mark):
    assert coverage_mark(value, 80, rows) == mark


def test_a_page_replaces_the_previous_one(assessment, page, tmp_path):
    target = tmp_path / "out.html"
    target.write_text("before")
    write_report(assessment, target)

    assert target.read_text() == page
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_folder_is_not_created(tmp_path):
    with pytest.raises(ConfigError, match=r"folder .*/absent does not exist; create it first"):
        check_report_path(tmp_path / "absent" / "out.html")
    assert not list(tmp_path.iterdir())


def test_a_folder_as_target_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="is a folder; give a file"):
        check_report_path(tmp_path)


def test_a_full_disk_leaves_no_partial_page(assessment, tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match=r"out.html: cannot be written \(No space left"):
        write_report(assessment, tmp_path / "out.html")
    assert not list(tmp_path.iterdir())
