"""The page in headless Chromium, of a cluster that says what it is told to."""

from __future__ import annotations

import pytest

from tests.schedulers.live.ui.conftest import refreshed, served, wait_until
from tests.schedulers.live.ui.stand_in import StandIn, large, listing, running, waiting
from tests.support.chromium import CONTRAST


def test_when_the_page_itself_is_not_answered_it_says_so(show):
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
    """The page of many jobs."""
    with StandIn(large(4, 4, 30)) as stand_in, served(stand_in.target) as url:
        yield url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_at_any_width_and_in_either_theme_it_can_be_read(show, of_many, width, scheme):
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


def test_rows_that_come_go_and_move_leave_the_others_as_they_are(show):
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
