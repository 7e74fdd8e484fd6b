"""The page in headless Chromium, beside a controller and agents that run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from presage.features.errors import ServiceError
from presage.schedulers.live.client import ClusterClient
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.ui.conftest import LONG_MS, refreshed, served, wait_until

EVIL = "<script>alert(1)</script>"
LEASE_S = 120.0  # longer than the test: jobs outlive the controller


class Cluster:
    """A controller and two agents of one device each, as processes."""

    def __init__(self, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.target, self._folder = f"127.0.0.1:{self.port}", folder
        self.client = ClusterClient(self.target)
        self.start_controller()
        cpu = min(os.sched_getaffinity(0))
        self._agents = [
            self._process(
                f"n{i}", "agent", "--node", f"n{i}", "--controller", self.target, "--device",
                f"cpu-1={cpu}", "--memory-gib", "1", "--state", str(folder / f"n{i}"),
                "--heartbeat-s", "0.5",
            )
            for i in range(2)
        ]  # fmt: skip
        self.until(lambda: sum(one.connected for one in self.client.list().nodes) == 2)

    def start_controller(self):
        self._controller = self._process(
            "controller", "controller", "--journal", str(self._folder / "controller.db"),
            "--port", str(self.port), "--lease-s", str(LEASE_S),
        )  # fmt: skip

    def kill_controller(self):
        self._controller.kill()
        self._controller.wait()

    def run(self, name, *command, **fields):
        job = pb.Job(job_id=name, command=command, gpus=1, grace_s=0.2, **fields)
        self.client.submit([job])

    def until(self, condition):
        deadline = time.monotonic() + 60
        while True:
            with suppress(ServiceError):
                if condition():
                    return
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def close(self):
        with suppress(ServiceError):
            self.client.cancel([row.job.job_id for row in self.client.list().jobs])
            self.until(lambda: not self.client.list().jobs)
        self.client.close()
        for process in (*self._agents, self._controller):
            process.send_signal(signal.SIGTERM)
        for process in (*self._agents, self._controller):
            process.wait(30)

    def _process(self, name, *words):
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "presage", "cluster", *words], stdout=log, stderr=log
            )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def url(cluster):
    with served(cluster.target) as found:
        yield found


@pytest.fixture(scope="module")
def jobs(cluster):
    """One that writes for as long as it is left, and one with an evil name."""
    cluster.run("writes", "/bin/sh", "-c", "while :; do echo and on; sleep 0.2; done")
    cluster.run(EVIL, "/bin/sh", "-c", f"echo '{EVIL}'; sleep 600", user=EVIL)
    cluster.until(lambda: sum(row.phase == pb.RUNNING for row in cluster.client.list().jobs) == 2)


def test_a_job_that_is_submitted_appears_and_nothing_else_is_disturbed(cluster, url, jobs, show):
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
    assert "no device has left what it needs" in row.inner_text()
    assert page.locator("#nodes svg.device a").count() == 2
    assert page.said == []


def test_a_click_on_a_job_leads_to_its_explanation(url, jobs, show):
    page = show(url)
    page.locator("#jobs").get_by_role("link", name="writes").click()
    page.wait_for_url("**/jobs/writes")
    wait_until(page, "document.querySelector('#log pre').textContent.includes('and on')")
    before = len(page.inner_text("#log pre"))
    wait_until(page, f"document.querySelector('#log pre').textContent.length > {before}")

    assert "runs on node n" in page.inner_text(".sentence")
    assert "nothing is known: a whole device" in page.inner_text("#foretold")
    assert page.locator("#candidates tbody tr").count() == 2
    history = page.locator("#history tbody th").all_inner_texts()
    assert history[:3] == ["submitted", "placed", "started"]
    log = page.locator("#log pre")
    assert log.evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight") < 8
    assert page.said == []


def test_a_name_that_is_a_script_is_text(url, jobs, show):
    page = show(url)
    page.locator("#jobs").get_by_role("link", name=EVIL).click()
    page.wait_for_selector("h1")
    wait_until(page, "document.querySelector('#log pre').textContent.includes('script')")

    assert EVIL in page.inner_text("h1")
    assert EVIL in page.inner_text("#log pre")
    assert page.locator("script").count() == 1
    assert page.said == []


def test_what_is_looked_for_is_found_while_one_types_and_is_in_the_address(url, jobs, show):
    page = show(url)
    page.keyboard.press("/")
    page.keyboard.type("WRIT")
    wait_until(page, "document.querySelectorAll('#jobs tbody tr').length === 1")
    refreshed(page)

    assert page.url == f"{url}?q=WRIT"
    assert page.input_value("#words") == "WRIT"
    assert page.evaluate("document.activeElement.id") == "words"
    assert page.locator("article.node").count() == 1
    page.select_option("#state", "waiting")
    wait_until(page, "document.querySelector('#jobs .empty') !== null")
    assert page.url == f"{url}?q=WRIT&state=waiting"
    assert page.said == []


def test_without_a_script_the_browser_loads_it_anew(cluster, url, jobs, show):
    page = show(url, java_script_enabled=False)
    assert page.locator("#jobs").get_by_role("link", name="writes").count() == 1
    cluster.run("unscripted", "/bin/sleep", "600")

    page.locator("#queue").get_by_role("link", name="unscripted").wait_for(timeout=LONG_MS)
    page.locator("#words").fill("writes")
    page.get_by_role("button", name="Find").click()
    page.wait_for_url("**/?q=writes*")
    assert page.locator("#jobs tbody tr").count() == 1


def test_a_controller_that_is_killed_is_said_and_seen_again_once_it_is_back(
    cluster, url, jobs, show
):
    page = show(url)
    refreshed(page)
    cluster.kill_controller()
    page.wait_for_selector("#live.bad")

    assert "no answer since" in page.inner_text("#live")
    assert f"no controller at {cluster.target}" in page.inner_text("#facts")
    assert page.locator("#jobs").get_by_role("link", name="writes").count() == 1
    since = page.inner_text("#live")
    refreshed(page)
    assert page.inner_text("#live") == since
    cluster.start_controller()
    page.wait_for_selector("#live:not(.bad)")
    assert page.said == []
