"""The page in headless Chromium, of a fake controller."""

from __future__ import annotations

import time

import pytest

from tests.schedulers.live.ui.conftest import refreshed, served, wait_until
from tests.schedulers.live.ui.stand_in import (
    StandIn,
    elastic,
    large,
    listing,
    node,
    running,
    waiting,
)
from tests.support.chromium import CONTRAST


def test_the_page_reports_that_its_server_does_not_respond(show):
    with StandIn(listing([running("a")])) as stand_in:
        with served(stand_in.target) as url:
            page = show(url)
            refreshed(page)
        wait_until(
            page,
            "document.querySelector('#live').textContent.startsWith('no response from this page')",
        )


@pytest.fixture(scope="module")
def of_many():
    """Yield the address of a page with many jobs."""
    with StandIn(large(4, 4, 30)) as stand_in, served(stand_in.target) as url:
        yield url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_readable_at_any_width_and_in_both_themes(show, of_many, width, scheme):
    page = show(of_many, color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    paper = page.eval_on_selector("body", "b => getComputedStyle(b).backgroundColor")

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for selector in ("body", ".muted", ".detail", "thead th", "a.job", "#live"):
        ink = page.eval_on_selector(selector, "e => getComputedStyle(e).color")
        assert page.evaluate(CONTRAST, [paper, ink]) >= 4.5, selector
    for badge in page.locator(".badge").all()[:8]:
        pair = badge.evaluate(
            "e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
        )
        assert page.evaluate(CONTRAST, pair) >= 4.5, badge.inner_text()
    assert page.said == []


def test_added_removed_and_moved_rows_leave_the_others_unchanged(show):
    with (
        StandIn(listing([running(name) for name in "abcd"])) as stand_in,
        served(stand_in.target) as url,
    ):
        page = show(url)
        rows = "[...document.querySelectorAll('#jobs tbody tr')]"
        page.evaluate(f"window.kept = {rows}[1]; kept.querySelector('a').focus()")
        stand_in.found = listing(
            [
                running("0"),
                running("b", usage_milli=1.0),
                running("d", slo_violated=True),
                waiting("c", 1),
            ]
        )
        wait_until(page, f"{rows}.length === 3")

        found = page.evaluate(f"{rows}.map((row) => row.querySelector('a').textContent)")
        assert found == ["d", "0", "b"]
        assert page.evaluate(f"{rows}[2] === kept && kept.contains(document.activeElement)")
        assert "0 % of 40 %, 40 %" in page.evaluate("kept.innerText")
        assert page.said == []


GROWS = "it grows from 1 to 3, since devices are idle"


def spirals(*sizes, members=(("node-00", 0),), begin_s=None):
    """Return an elastic job that was submitted at ``begin_s``, by default 100 s ago."""
    begin_s = begin_s or time.time() - 100
    return elastic("spirals", members, sizes, submitted_unix_s=begin_s, started_unix_s=begin_s)


def test_a_change_of_size_appears_in_the_chart_the_table_and_the_workers(show):
    start, begin_s = (10, 1, "it starts on 1 of at most 4 devices"), time.time() - 100
    first = listing([spirals(start, begin_s=begin_s)])
    with StandIn(first) as stand_in, served(stand_in.target) as url:
        page = show(url)
        page.locator("#jobs").get_by_role("link", name="spirals").click()
        page.wait_for_url("**/jobs/spirals")
        page.get_by_role("img", name="Devices over time: 1 now; the range is 1 to 4").wait_for()
        steps = "document.querySelectorAll('.step')"
        assert page.evaluate(f"{steps}.length") == 2
        page.evaluate(f"window.kept = {steps}[1]")

        members = [("node-00", 0), ("node-00", 1), ("node-01", 0, "joining")]
        job = spirals(start, (60, 3, GROWS), members=members, begin_s=begin_s)
        stand_in.found = listing([job], [node(), node("node-01")])
        wait_until(page, f"{steps}.length === 3")

        box = "{}.querySelector('.area').getBoundingClientRect()"
        before, after = (page.evaluate(box.format(f"{steps}[{i}]")) for i in (1, 2))
        assert after["height"] == pytest.approx(3 * before["height"], rel=0.02)
        assert after["x"] == pytest.approx(before["x"] + before["width"], abs=1)
        assert page.evaluate(f"{steps}[1] === kept")
        assert page.locator(".step title").last.text_content().endswith(f"3 devices: {GROWS}")
        changes = page.locator("#sizes tbody tr").all_inner_texts()
        assert [text.split("\t")[1:] for text in changes] == [["3", GROWS], ["1", start[2]]]
        assert page.locator("#workers tbody tr").last.inner_text().split() == [
            "m3", "joining", "node-01", ":", "0", "100", "%", "80", "GiB",
        ]  # fmt: skip
        assert "3 of 1-4" in page.inner_text("#sizes h2")
        assert page.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_chart_is_readable_at_any_width_and_in_both_themes(show, width, scheme):
    with (
        StandIn(listing([spirals((10, 1, "it starts"), (60, 3, GROWS))])) as stand_in,
        served(stand_in.target) as url,
    ):
        page = show(url, color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{url.partition('?')[0]}jobs/spirals")

        assert page.evaluate("document.documentElement.scrollWidth") <= width
        boxes = [text.bounding_box() for text in page.locator(".steps text").all()]
        assert len(boxes) >= 7
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
        paper = page.eval_on_selector("body", "b => getComputedStyle(b).backgroundColor")
        for selector, style, least in ((".steps text", "fill", 4.5), (".step line", "stroke", 3)):
            ink = page.eval_on_selector(selector, f"e => getComputedStyle(e).{style}")
            assert page.evaluate(CONTRAST, [paper, ink]) >= least, selector
        assert page.said == []
