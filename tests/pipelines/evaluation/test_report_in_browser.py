"""Evaluation page in headless Chromium, driven by Playwright."""

import math
import re
from functools import partial

import pytest

from presage.pipelines.evaluation.assessment import assess
from presage.pipelines.evaluation.report.evaluation_page import SHOWN_DIGITS, percent, write_report
from tests.pipelines.evaluation.forecast_examples import forecasts, metrics_of
from tests.support.chromium import CONTRAST

SECTIONS = [
    "summary", "job", "family", "calibration", "compute_utilization", "memory", "step_time",
    "interference", "reading",
]  # fmt: skip


@pytest.fixture(scope="module")
def metrics():
    return metrics_of(forecasts())


@pytest.fixture(scope="module")
def path(metrics, tmp_path_factory):
    target = tmp_path_factory.mktemp("report") / "out.html"
    write_report(assess(metrics, forecasts()), target)
    return target


@pytest.fixture
def show(open_page, path):
    return partial(open_page, path)


def test_the_page_makes_no_other_request_and_logs_no_error(show, path):
    page = show()

    assert page.asked == [path.as_uri()]
    assert page.said == []


def test_every_section_exists_and_is_linked_from_the_menu(show):
    page = show()

    assert page.eval_on_selector_all("main > section", "all => all.map((s) => s.id)") == SECTIONS
    for section in SECTIONS:
        assert page.is_visible(f"#{section} h2")
        page.click(f'nav a[href="#{section}"]')
        top = page.eval_on_selector(f"#{section}", "s => s.getBoundingClientRect().top")
        assert top < 900


def test_figures_are_those_of_the_metrics(show, metrics):
    cells = show().eval_on_selector_all(
        "section td[data-figure]",
        "all => all.map((c) => [c.dataset.figure, c.dataset.value, c.innerText.trim()])",
    )
    shown = {name: (float(value), text) for name, value, text in cells}
    for predictor, splits in metrics.items():
        for split, models in splits.items():
            for model, figures in models.items():
                for figure in SHOWN_DIGITS.keys() | {f for f in figures if f.endswith("%")}:
                    value, text = shown[f"{predictor}.{split}.{model}.{figure}"]
                    assert value == figures[figure]
                    if figure in ("mape", "median_ape"):
                        assert text == percent(value)


def test_headlines_are_the_median_errors(show, metrics):
    big = show().eval_on_selector_all(".big", "all => all.map((b) => b.innerText)")
    told = [float(re.sub(r"[^\d.]", "", text)) for text in big]
    expected = [
        m[split]["mlp"]["median_ape"] for m in metrics.values() for split in ("job", "family")
    ]

    assert told == [round(value, 1) for value in expected]


def test_tables_show_rows_in_and_out_of_domain_and_the_ten_worst(show):
    page = show()
    domain = page.inner_text('table[data-table="step_time.error_by.domain"] tbody')
    worst = page.inner_text('table[data-table="step_time.worst.family"] tbody')

    assert "in domain" in domain
    assert "out of domain" in domain
    assert page.locator('table[data-table="step_time.worst.family"] tbody tr').count() == 10
    assert "no other family has <b>attention</b>: 41 %" in worst


def test_every_chart_has_its_marks_and_an_alternative_text(show):
    page = show()
    charts = page.eval_on_selector_all(
        "svg.chart",
        """all => all.map((c) => [
            c.getAttribute("aria-label"),
            c.querySelectorAll("circle, .out-of-domain, rect.mark").length,
            c.getBoundingClientRect().width])""",
    )

    assert len(charts) == 4 + 2 * 4
    for label, marks, width in charts:
        assert label
        assert marks >= 10
        assert width > 150
    inside = page.evaluate(
        """() => [...document.querySelectorAll("svg.chart .cloud circle")].every((c) => {
            const [cx, cy] = [c.cx.baseVal.value, c.cy.baseVal.value];
            return cx >= 0 && cx <= 320 && cy >= 0 && cy <= 320; })"""
    )
    assert inside


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_at_any_width_only_tables_scroll_sideways(show, width):
    page = show(width=width)

    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_themes(show, scheme):
    page = show(scheme=scheme)
    paper = page.eval_on_selector("body", "b => getComputedStyle(b).backgroundColor")
    for selector in ("body", ".muted", "td.best", ".tag.out", "th", "nav a"):
        ink = page.eval_on_selector(selector, "e => getComputedStyle(e).color")
        assert page.evaluate(CONTRAST, [paper, ink]) >= 4.5, selector


def test_the_themes_differ(show):
    papers = {
        show(scheme=scheme).eval_on_selector("body", "b => getComputedStyle(b).backgroundColor")
        for scheme in ("light", "dark")
    }

    assert len(papers) == 2


def test_a_screenshot_of_the_page_can_be_taken(show, tmp_path):
    picture = tmp_path / "page.png"
    page = show()
    page.screenshot(path=picture, full_page=True)

    assert picture.stat().st_size > 50_000
    assert math.isclose(page.evaluate("window.devicePixelRatio"), 1)
