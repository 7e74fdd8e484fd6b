"""The page while its controller is down."""

from __future__ import annotations

import pytest

from tests.schedulers.live.ui.conftest import refreshed, served
from tests.schedulers.live.ui.live_cluster import Cluster


@pytest.fixture
def cluster(tmp_path):
    found = Cluster(tmp_path, agents=0)
    yield found
    found.close()


def test_the_page_shows_that_a_controller_was_killed_and_that_it_is_back(cluster, show):
    cluster.run("waits", "/bin/true")
    with served(cluster.target) as url:
        page = show(url)
        refreshed(page)
        cluster.kill_controller()
        page.wait_for_selector("#live.bad")

        assert "no response since" in page.inner_text("#live")
        assert f"no controller at {cluster.target}" in page.inner_text("#facts")
        assert page.locator("#queue").get_by_role("link", name="waits").count() == 1
        since = page.inner_text("#live")
        refreshed(page)
        assert page.inner_text("#live") == since
        cluster.start_controller()
        page.wait_for_selector("#live:not(.bad)")
        assert page.said == []
