"""The page in headless Chromium, of a running controller and agents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from presage.features.device.device import find_device
from presage.schedulers.live.ui.figures import format_duration, percent, size
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.codec.wire_values import write_job
from tests.schedulers.live.ui.conftest import LONG_MS, refreshed, served, wait_until
from tests.schedulers.live.ui.live_cluster import Cluster
from tests.serving.conftest import make_job

KIND = "rtx-3090"
RELEASE = Path(__file__).parents[4] / "data/pretrained/release"
EVIL = "<script>alert(1)</script>"
WRITES = "n=0; while :; do n=$((n + 1)); echo line $n; sleep 0.2; done"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    found = Cluster(tmp_path_factory.mktemp("cluster"), agents=2)
    yield found
    found.close()


@pytest.fixture(scope="module")
def url(cluster):
    with served(cluster.target) as found:
        yield found


@pytest.fixture(scope="module")
def jobs(cluster):
    """Run a job that writes until it is ended, and a job with a script as its id."""
    cluster.run("writes", "/bin/sh", "-c", WRITES)
    cluster.run(EVIL, "/bin/sh", "-c", f"echo '{EVIL}'; sleep 600", user=EVIL)
    cluster.until(lambda: sum(row.phase == pb.RUNNING for row in cluster.client.list().jobs) == 2)


def test_a_submitted_job_appears_without_moving_scroll_focus_or_selection(cluster, url, jobs, show):
    page = show(url)
    page.set_viewport_size({"width": 1280, "height": 400})
    page.get_by_role("link", name="writes").last.focus()
    page.evaluate("scrollTo(0, 300)")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#queue thead'))")
    focused, selected = "document.activeElement.href", "String(getSelection())"
    before = [page.evaluate(text) for text in ("scrollY", focused, selected)]

    cluster.run("later", "/bin/sleep", "600")
    row = page.locator("#queue tr", has_text="later")
    row.wait_for()
    refreshed(page, 2)

    assert [page.evaluate(text) for text in ("scrollY", focused, selected)] == before
    assert before[0] == 300
    assert "why it waits" in before[2]
    assert before[1].endswith("/jobs/writes")
    assert "no device has enough free capacity" in row.inner_text()
    assert page.locator("#nodes svg.device a").count() == 2
    assert page.said == []


def test_a_click_on_a_job_opens_its_explanation(url, jobs, show):
    page = show(url)
    page.locator("#jobs").get_by_role("link", name="writes").click()
    page.wait_for_url("**/jobs/writes")
    log = "document.querySelector('#log pre').textContent"
    wait_until(page, f"{log}.includes('line 3')")
    before = page.evaluate(log)
    wait_until(page, f"{log} !== {json.dumps(before)}")

    assert "runs on node n" in page.inner_text(".sentence")
    assert "no forecast: exclusive device" in page.inner_text("#forecasts")
    assert page.locator("#candidates tbody tr").count() == 2
    history = page.locator("#history tbody th").all_inner_texts()
    assert history[:3] == ["submitted", "placed", "started"]
    assert (
        page.eval_on_selector("#log pre", "e => e.scrollHeight - e.scrollTop - e.clientHeight") < 8
    )
    assert page.said == []


def test_forecasts_are_shown_next_to_usage_and_the_slo_next_to_its_job(tmp_path_factory, show):
    folder = tmp_path_factory.mktemp("forecasts")
    gib = find_device(KIND).memory_bytes / 2**30
    cluster = Cluster(folder, agents=1, kind=KIND, memory_gib=gib, forecast=RELEASE)
    try:
        features = write_job(make_job(iterations=10_000_000))
        for name, urgent in (("urgent", True), ("other", False)):
            cluster.run(
                name, "/bin/sleep", "600", features=features, iterations=10_000_000,
                latency_sensitive=urgent,
            )  # fmt: skip
        cluster.until(
            lambda: sum(row.phase == pb.RUNNING for row in cluster.client.list().jobs) == 2
        )
        (told,) = cluster.client.explain("urgent").status.predictions
        assert told.compute_milli < 500
        with served(cluster.target) as url:
            page = show(url)
            row = page.locator("#jobs tr", has_text="urgent")
            row.get_by_text("SLO met").wait_for()
            assert percent(told.compute_milli) in row.inner_text()
            assert page.locator("#nodes svg.device a").count() == 2
            page.locator("#jobs").get_by_role("link", name="urgent").click()
            page.wait_for_url("**/jobs/urgent")
            beside = page.inner_text("#forecasts")
            assert f"of {percent(told.compute_milli)}, {percent(told.compute_milli)}" in beside
            assert f"≤ {format_duration(told.slo_s)}" in beside
            assert size(told.memory_bytes) in beside
            assert "no other node had free capacity for" in page.inner_text(".sentence")
            assert page.said == []
    finally:
        cluster.close()


def test_a_job_id_with_a_script_is_shown_as_text(url, jobs, show):
    page = show(url)
    page.locator("#jobs").get_by_role("link", name=EVIL).click()
    page.wait_for_selector("h1")
    wait_until(page, "document.querySelector('#log pre').textContent.includes('script')")

    assert EVIL in page.inner_text("h1")
    assert EVIL in page.inner_text("#log pre")
    assert page.locator("script").count() == 1
    assert page.said == []


def test_a_search_filters_while_typing_and_is_in_the_address(url, jobs, show):
    page = show(url)
    page.keyboard.press("/")
    page.keyboard.type("WRIT")
    wait_until(page, "document.querySelectorAll('#jobs tbody tr').length === 1")
    refreshed(page)

    assert page.url == f"{url.partition('?')[0]}?q=WRIT"
    assert page.input_value("#words") == "WRIT"
    assert page.evaluate("document.activeElement.id") == "words"
    assert page.locator("article.node").count() == 1
    page.select_option("#state", "waiting")
    wait_until(page, "document.querySelector('#jobs .empty') !== null")
    assert page.url == f"{url.partition('?')[0]}?q=WRIT&state=waiting"
    assert page.said == []


def test_without_scripts_the_browser_reloads_the_page(cluster, url, jobs, show):
    page = show(url, java_script_enabled=False)
    assert page.locator("#jobs").get_by_role("link", name="writes").count() == 1
    cluster.run("unscripted", "/bin/sleep", "600")

    page.locator("#queue").get_by_role("link", name="unscripted").wait_for(timeout=LONG_MS)
    page.locator("#words").fill("writes")
    page.get_by_role("button", name="Find").click()
    page.wait_for_url("**/?q=writes*")
    assert page.locator("#jobs tbody tr").count() == 1
