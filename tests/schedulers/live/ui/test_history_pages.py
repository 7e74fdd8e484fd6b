"""Pages of the history and of the ended jobs, from responses of a controller."""

from __future__ import annotations

import math
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.ui.history.ended_jobs import ROWS_PER_PAGE, make_ended_jobs
from presage.schedulers.live.ui.history.history_chart import (
    HEIGHT,
    SPANS,
    WIDTH,
    make_charts,
    value_ticks,
)
from presage.schedulers.live.ui.page_access import PageAccess
from presage.schedulers.live.ui.pages import application
from presage.schedulers.live.ui.poller import Poller
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.ui.stand_in import StandIn, elastic, listing, running, told
from tests.schedulers.live.ui.test_pages import EVIL, let_in

NOW_S = 1_740_000_000.0
HOUR, DAY = SPANS["hour"], SPANS["day"]


def value(mean, least=None, greatest=None):
    return pb.SampledValue(
        mean=mean, least=mean if least is None else least,
        greatest=mean if greatest is None else greatest,
    )  # fmt: skip


def point(minutes_ago, waiting=1.0, *, jobs=0, now_s=NOW_S, **more):
    found = pb.HistoryPoint(
        time_unix_s=now_s - 60 * minutes_ago, samples=1, devices=value(4), devices_in_use=value(3),
        waiting_jobs=value(waiting), **more,
    )  # fmt: skip
    if jobs:
        found.forecast_errors.CopyFrom(pb.ForecastErrors(jobs=jobs, mean=0.25, greatest=0.5))
    return found


def charts(points, span=HOUR, *, has_errors=True):
    found = pb.HistoryResponse(points=points, has_errors=has_errors)
    return {one.key: one for one in make_charts(found, span, NOW_S)}


def test_each_chart_has_a_text_and_a_table_with_the_newest_value_first():
    found = charts([point(30, 2), point(29, 5, finished_jobs=3, jobs=1)])["jobs"]

    assert found.columns == ["waiting", "running", "finished", "failed"]
    assert [values for _, values in found.rows] == [["5", "0", "3", "0"], ["2", "0", "0", "0"]]
    assert "waiting 5 last, 3.5 on average, 5 at most" in found.label
    assert found.hits[1].title.endswith(": waiting: 5; running: 0; finished: 3; failed: 0")


def test_a_longer_step_shows_the_least_and_the_greatest_value():
    found = charts([point(60), point(50)], DAY)["devices"]
    assert found.lines[0].band != ""
    assert all(line.band == "" for line in found.lines[1:])
    wide = pb.HistoryPoint(time_unix_s=NOW_S - 6000, waiting_jobs=value(2.5, 1, 4))
    assert charts([wide], DAY)["jobs"].rows[0][1][0] == "2.5 (1 to 4)"


def test_lines_are_interrupted_where_the_controller_was_down():
    path = charts([point(40), point(39), point(20), point(19)])["jobs"].lines[0].path
    assert path.count("M") == 2
    assert path.count("L") == 2


def test_points_without_ended_jobs_have_no_error_and_interrupt_the_line():
    found = charts([point(40, jobs=2), point(39), point(38, jobs=1)])["errors"]
    assert found.lines[0].path.count("h0") == 2
    assert "L" not in found.lines[0].path
    assert [values[0] for _, values in found.rows] == ["25 %", "-", "25 %"]


def test_errors_are_shown_to_administrators_only():
    assert "errors" not in charts([point(1)], has_errors=False)


numbers = st.floats(0, 1e7)


@settings(max_examples=40, deadline=None)
@given(
    ages=st.lists(st.integers(-5, 2000), max_size=30, unique=True),
    means=st.lists(numbers, min_size=30, max_size=30),
)
def test_everything_is_drawn_within_the_chart(ages, means):
    points = [point(age, mean) for age, mean in zip(sorted(ages)[::-1], means, strict=False)]
    for chart in charts(points, DAY).values():
        for line in chart.lines:
            for x, y in re.findall(r"[ML]?([\d.e+-]+) ([\d.e+-]+)", line.path + line.band):
                assert 0 <= float(x) <= WIDTH
                assert 0 <= float(y) <= HEIGHT
        assert all(0 <= hit.x <= 100 for hit in chart.hits)
        assert len(chart.rows) == len(chart.hits) <= len(points)


@given(most=st.floats(1e-3, 1e9))
def test_axes_have_few_round_values_and_contain_all(most):
    top, ticks = value_ticks(most)
    assert top >= most * (1 - 1e-9)
    assert top <= max(1.0, 2.5 * most)
    assert 2 <= len(ticks) <= 7
    assert (ticks[0].at, ticks[0].text.strip("0.")) == (100, "")
    assert ticks[-1].at == 0
    assert len({tick.text for tick in ticks}) == len(ticks)


def ended(name, phase=pb.FINISHED, **fields):
    fields = {"ended_unix_s": 1e9 + 100, "elapsed_s": 3000.0, "attempt": 1} | fields
    return running(name, phase=phase, **fields)


def errors(*rows):
    return {
        row.status.job.job_id: (row.error, row.is_beyond_bound)
        for row in make_ended_jobs(listing(rows), 1).rows
    }


def test_errors_are_of_jobs_that_finished_in_one_run_with_a_forecast():
    grown = elastic("elastic", [("node-00", 0)], phase=pb.FINISHED, attempt=1, elapsed_s=30.0)
    assert errors(
        ended("long", elapsed_s=3000.0),
        ended("short", elapsed_s=7200.0),
        ended("failed", pb.FAILED),
        ended("twice", attempt=2),
        ended("unpredicted", predictions=[]),
        ended("unknown", predictions=[told(runtime_s=math.inf)]),
        grown,
    ) == {
        "long": ("+20 %", False), "short": ("-50 %", True), "failed": ("", False),
        "twice": ("", False), "unpredicted": ("", False), "unknown": ("", False),
        "elastic": ("", False),
    }  # fmt: skip


def test_pages_are_counted_from_the_jobs_that_remain():
    found = listing([ended("a")])
    found.remaining_job_count = 120
    view = make_ended_jobs(found, 2)
    assert (view.page, view.pages, view.total) == (2, 4, ROWS_PER_PAGE + 121)
    assert make_ended_jobs(listing(), 9).pages == 1


class Recording(StandIn):
    """Fake controller with a history, and pages of ended jobs."""

    history = pb.HistoryResponse()

    def History(self, request, context):
        self.asked = request
        return self.history

    def List(self, request, context):
        self.listed = request
        return self.found


@pytest.fixture
def recording():
    with Recording(listing([ended("a", reason=EVIL, user=EVIL), ended(EVIL)])) as found:
        yield found


@pytest.fixture
def client(recording):
    with Poller(lambda: ClusterClient(recording.target, timeout_s=5.0)) as poller:
        access = PageAccess()
        yield let_in(application(poller, recording.target, access), access)


def test_the_history_page_requests_its_span_and_has_charts_and_tables(client, recording):
    points = [point(3, 7, now_s=time.time()), point(2, 6, now_s=time.time())]
    recording.history = pb.HistoryResponse(points=points)
    text = client.get("/history?span=week").text

    assert recording.asked.step_s == 3600
    assert recording.asked.to_unix_s - recording.asked.from_unix_s == pytest.approx(604_800)
    assert text.count('role="img"') == text.count("<summary>Values as a table") == 3
    assert "shown to administrators only" in text
    assert 'href="/history?span=week" aria-current="true"' in text
    assert client.get("/history?span=<script>").status_code == 200


def test_the_history_page_says_why_there_is_none():
    with (
        StandIn(listing()) as old,  # without the method
        Poller(lambda: ClusterClient(old.target, timeout_s=5.0)) as poller,
    ):
        access = PageAccess()
        text = let_in(application(poller, old.target, access), access).get("/history").text
    assert "of an earlier version" in text
    assert ">live<" in text


def test_the_list_of_ended_jobs_has_pages(client, recording):
    recording.found.remaining_job_count = 200
    text = client.get("/ended?page=3").text
    assert (recording.listed.offset, recording.listed.limit) == (100, 50)
    assert list(recording.listed.states)[:2] == ["finished", "failed"]
    assert "page 3 of 7" in text
    assert 'href="/ended?page=2"' in text
    assert 'href="/ended?page=4"' in text


@pytest.mark.parametrize("page", ["0", "-1", "x", "1e9", "9999999", "²", ""])
def test_a_page_that_is_no_number_is_rejected(client, page):
    assert client.get("/ended", query_string={"page": page}).status_code == 400


def test_texts_of_users_are_escaped(client):
    text = client.get("/ended").text
    assert EVIL not in text
    assert 'title="&lt;script&gt;' in text


def test_texts_that_may_be_cut_have_them_in_full_as_a_title(client):
    text = client.get("/ended").text
    cells = re.findall(r'<a class="job" href="[^"]+" title="([^"]*)">', text)
    assert len(cells) == 2
