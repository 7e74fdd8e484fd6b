"""Pages of history, ended jobs and actions in headless Chromium."""

from __future__ import annotations

import time

import pytest

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.ui.conftest import refreshed, served
from tests.schedulers.live.ui.stand_in import listing, running
from tests.schedulers.live.ui.test_history_pages import Recording, ended, point
from tests.support.chromium import CONTRAST

LONG = "a-very-long-name-of-a-job-" * 4
PATHS = (
    "history?span=hour",
    "history?span=week",
    "ended",
    f"jobs/{LONG}",
    "actions?do=hold&name=a",
)
# What screen readers need of any page: names of controls, one main heading, order of headings,
# different names of landmarks, and headers of tables.
PROBLEMS = """
() => {
  const found = [], name = (e) =>
    (e.getAttribute("aria-label") || (e.labels && e.labels[0] && e.labels[0].textContent) ||
     e.textContent || e.title || "").trim();
  for (const e of document.querySelectorAll("a, button, input:not([type=hidden]), select"))
    if (!name(e)) found.push("no name: " + e.outerHTML);
  for (const e of document.querySelectorAll("[role=img], [role=region]"))
    if (!e.getAttribute("aria-label") && !e.getAttribute("aria-labelledby")) found.push("no label");
  if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
  if (document.querySelectorAll("main").length !== 1) found.push("not one main");
  let before = 1;
  for (const e of document.querySelectorAll("h1, h2, h3")) {
    const level = Number(e.nodeName[1]);
    if (level > before + 1) found.push("skipped heading: " + e.textContent);
    before = level;
  }
  const names = [...document.querySelectorAll("nav")].map((e) => e.getAttribute("aria-label"));
  if (new Set(names).size !== names.length) found.push("names of landmarks: " + names);
  for (const e of document.querySelectorAll("table"))
    if (!e.querySelector("th[scope=col]")) found.push("no headers");
  return found;
}
"""


@pytest.fixture(scope="module")
def url():
    now = time.time() // 60 * 60
    points = [point(age, age % 7, jobs=age % 3, now_s=now) for age in range(50, 0, -1)]
    rows = [running("a"), running(LONG), ended("e1"), ended(f"{LONG}{'x' * 20}", pb.FAILED)]
    with Recording(listing(rows)) as stand_in:
        stand_in.found.client, stand_in.found.client_roles[:] = "ada", ["admin"]
        stand_in.history = pb.HistoryResponse(points=points, has_errors=True)
        with served(stand_in.target, allow_actions=True) as found:
            yield found


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_each_page_fits_its_width_and_has_names_headings_and_contrast(show, url, width, scheme):
    page = show(url, color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for path in PATHS:
        page.goto(f"{url.partition('?')[0]}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.evaluate(PROBLEMS) == [], path
        paper = page.eval_on_selector("body", "b => getComputedStyle(b).backgroundColor")
        for selector, style, least in (
            (".muted, .legend, h1", "color", 4.5), (".steps text", "fill", 4.5),
            (".trend", "stroke", 3), ("button.do, .button", "color", 4.5),
        ):  # fmt: skip
            for one in page.locator(selector).all()[:4]:
                ink = one.evaluate(f"e => getComputedStyle(e).{style}")
                assert page.evaluate(CONTRAST, [paper, ink]) >= least, (path, selector)
    assert page.said == []


def test_a_table_that_the_reader_opened_stays_open(show, url):
    page = show(url)
    page.goto(f"{url.partition('?')[0]}history")
    page.locator("summary").first.click()
    refreshed(page)
    assert page.locator("details[open] tbody tr").count() == 50
    assert page.said == []


def test_a_wide_table_scrolls_on_a_phone(show, url):
    page = show(url)
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(f"{url.partition('?')[0]}ended")
    scrolled = "e => { e.scrollLeft = 200; return e.scrollLeft }"
    assert page.eval_on_selector(".scroll", scrolled) == 200
