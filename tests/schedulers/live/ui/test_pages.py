"""HTTP responses of the pages: escaping, size, speed, allowed hosts and methods."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, urlsplit

import pytest

from presage.errors import ServiceError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.ui import log_tail as tail
from presage.schedulers.live.ui.log_tail import LogTail, last_lines
from presage.schedulers.live.ui.page_access import PageAccess
from presage.schedulers.live.ui.page_server import serve_pages
from presage.schedulers.live.ui.pages import application
from presage.schedulers.live.ui.poller import Poller
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.printable import is_visible
from tests.schedulers.live.ui.conftest import served
from tests.schedulers.live.ui.stand_in import (
    GIB,
    StandIn,
    elastic,
    large,
    listing,
    node,
    running,
    waiting,
)
from tests.support.waiting import wait_until

EVIL = "<script>alert(1)</script>"
MAX_BYTES = 1_000_000
MAX_S = 2.0  # a quarter of it on an idle machine


@pytest.fixture
def stand_in():
    with StandIn(listing([running("a"), waiting("b", 1)])) as found:
        yield found


@pytest.fixture
def client(stand_in):
    with Poller(lambda: ClusterClient(stand_in.target, timeout_s=2.0)) as poller:
        hosts, access = frozenset({"127.0.0.1", "localhost", "::1"}), PageAccess()
        yield let_in(application(poller, stand_in.target, access, hosts=hosts), access)


def let_in(app, access, host="localhost"):
    """Return a browser that has opened the address with the token."""
    browser = app.test_client()
    assert browser.get(access.link("/"), base_url=f"http://{host}").status_code == 303
    return browser


def browser():
    """Return a browser that stores cookies."""
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor())


def test_all_content_of_users_is_escaped(client, stand_in):
    evil = running(EVIL, user=EVIL, model=EVIL, reason=EVIL)
    evil.job.command.extend(["sh", "-c", EVIL])
    evil.job.folder = EVIL
    stand_in.found = listing([evil, waiting(f'"{EVIL}', 1, kinds=[EVIL])])
    stand_in.found.policy = stand_in.found.forecaster_error = stand_in.found.nodes[0].name = EVIL
    stand_in.found.nodes[0].reason = EVIL
    stand_in.log = EVIL.encode()
    stand_in.events = [pb.Event(entry=7, type=EVIL, job_id=EVIL, node=EVIL, details=EVIL)]
    wait_until(
        lambda: EVIL.replace("<", "&lt;").replace(">", "&gt;") + "</b>" in client.get("/").text
    )
    searched = client.get("/", query_string={"q": f'">{EVIL}'})
    pages = [client.get("/"), client.get(f"/jobs/{EVIL}"), searched]

    for page in pages:
        assert page.status_code == 200
        assert "&lt;script&gt;alert(1)" in page.text
        assert re.findall("<script[^>]*>", page.text) == re.findall(
            r'<script src="/live\.js\?[0-9a-f]+" defer>', page.text
        )
        assert 'style="' not in page.text


def test_characters_that_reorder_hide_or_control_text_are_shown_as_escapes(client, stand_in):
    evil = "\u202egnp.exe\u200b\x1b[2J\u2066"
    stand_in.found = listing([running("a", user=evil, model=evil, reason=evil)])
    stand_in.found.policy = stand_in.found.forecaster_error = stand_in.found.nodes[0].name = evil
    stand_in.log = f"first\n{evil}\nlast".encode()
    stand_in.events = [pb.Event(entry=7, type="Started", job_id=evil, node=evil, details=evil)]
    wait_until(lambda: r"\u202egnp.exe\u200b\x1b[2J\u2066" in client.get("/").text)
    wait_until(lambda: r"\u202egnp" in client.get("/jobs/a").text)

    for page in (client.get("/"), client.get("/jobs/a"), client.get(f"/?q={quote(evil)}")):
        assert not {c for c in page.text if not (is_visible(c) or c in "\n\t")}


def test_the_page_reports_no_issues_only_if_nothing_is_red(client, stand_in):
    def shows(*jobs):
        stand_in.found = listing(jobs)
        name = jobs[0].job.job_id
        return wait_until(lambda: next((p for p in [client.get("/").text] if f">{name}<" in p), ""))

    assert "Nothing: all nodes are up, no job violates its SLO" in shows(running("good"))
    for job in (
        running("slow", latency_sensitive=False, elapsed_s=5000.0),
        running("late", slo_violated=True, phase=pb.LEAVING),
        running("large", peak_memory_bytes=21 * GIB),
    ):
        page = shows(job)
        assert "Nothing:" not in page
        assert 'Needs attention <span class="n">1</span>' in page


def test_only_files_of_this_server_can_run_or_be_loaded(client):
    page = client.get("/")
    policy = page.headers["Content-Security-Policy"]

    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "://" not in page.text
    for address in re.findall(r'(?:src|href)="(/(?:live|page)[^"]*)"', page.text):
        assert client.get(address).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "", "[", "0.0.0.0"])
def test_another_name_of_this_host_is_rejected(client, host):
    answer = client.get("/", headers={"Host": host})
    assert (answer.status_code, answer.mimetype) == (421, "text/plain")
    assert client.get("/page.css", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:50062", "LOCALHOST:1"])
def test_a_forwarded_port_of_this_host_is_accepted(stand_in, host):
    with Poller(lambda: ClusterClient(stand_in.target, timeout_s=2.0)) as poller:
        hosts, access = frozenset({"127.0.0.1", "localhost", "::1"}), PageAccess()
        asking = let_in(application(poller, stand_in.target, access, hosts=hosts), access, host)
        assert asking.get("/", base_url=f"http://{host}").status_code == 200


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
def test_pages_accept_only_reads(client, method):
    assert getattr(client, method)("/").status_code == 405
    assert getattr(client, method)("/jobs/a").status_code == 405


@pytest.mark.parametrize(
    "name", ["a b", "a/b", "/a", "a//b/", "..", ".", "?", "#", "%2F", "ü²", "a&b=c", "..%2f", "\\"]
)
def test_a_job_with_any_id_has_a_page_with_a_link(client, stand_in, name):
    stand_in.found = listing([running(name)])
    listed = wait_until(lambda: "is on a device" not in (page := client.get("/").text) and page)
    (address,) = set(re.findall(r'class="job" href="([^"]*)"', listed))
    page = client.get(address.replace("&amp;", "&"))

    assert page.status_code == 200
    assert stand_in.explained[-1] == name


def test_waiting_jobs_have_their_predicted_starts(client, stand_in):
    stand_in.found = listing([waiting("patient", 1)])
    expected = "starts in 2 min (80 %: 1 min to 4 min)"

    wait_until(lambda: expected in client.get("/").text)
    wait_until(lambda: expected in client.get("/jobs/patient").text)


def test_an_unknown_job_is_not_found(client):
    page = client.get("/jobs/missing")
    assert page.status_code == 404
    assert "no job &#39;missing&#39; is known" in page.text
    assert client.get("/nothing").status_code == 404
    assert client.get("/jobs/%ff%00").status_code == 404
    page = client.get(f"/jobs/{'a' * 50_000}")
    assert (page.status_code, len(page.data) < 5000) == (404, True)


def test_unlisted_jobs_are_counted_on_the_page(client, stand_in):
    stand_in.found = listing([running("a", milli=300)], unlisted=[running(f"b{i}") for i in "12"])
    page = wait_until(
        lambda: "2 more jobs are not listed" in (text := client.get("/").text) and text
    )

    assert "80 % allocated to 2 jobs that are not listed" in page
    assert 'href="/jobs/"' not in page
    assert "no listed job violates its SLO" in page


def test_requests_of_many_browsers_share_one_request_to_the_controller(client, stand_in):
    for _ in range(20):
        client.get("/jobs/a")
    assert stand_in.explained.count("a") < 15


def test_a_log_is_shown_as_a_terminal_would_display_it():
    assert last_lines(b"\x1b[31mred\x1b[0m\r\n10 %\r99 %\rdone\r\nbad \x07\xff\n") == (
        "red\ndone\nbad \ufffd\ufffd\n"
    )
    assert last_lines(b"") == ""
    many = "".join(f"line {i}\n" for i in range(100_000)).encode()
    assert last_lines(many).startswith("line 99800\n")
    assert len(last_lines(b"x" * 10**6)) < 30_000


def test_the_end_of_a_log_is_fetched_in_the_background(client, stand_in, monkeypatch):
    monkeypatch.setattr(tail, "MAX_AGE_S", 0.0)
    stand_in.log = b"step 1\nstep 2\n"
    page = wait_until(lambda: "step 2" in (text := client.get("/jobs/a").text) and text)
    assert f"presage cluster logs --controller {stand_in.target} -- a" in page
    stand_in.log = b""  # the node no longer has it
    before = stand_in.log_requests
    wait_until(lambda: client.get("/jobs/a").text and stand_in.log_requests >= before + 2)
    assert "step 2" in client.get("/jobs/a").text


def test_the_log_of_an_earlier_attempt_is_not_shown_for_the_next_one(client, stand_in):
    stand_in.log = b"of the first\n"
    wait_until(lambda: "of the first" in client.get("/jobs/a").text)
    stand_in.log = b""
    stand_in.found = listing([running("a", attempt=2)])
    page = wait_until(lambda: "It wrote nothing" in (text := client.get("/jobs/a").text) and text)

    assert "of the first" not in page


def test_a_failure_to_fetch_a_log_is_shown_until_the_next_success(monkeypatch):
    monkeypatch.setattr(tail, "MAX_AGE_S", 0.0)
    monkeypatch.setattr(tail, "FETCH_WAIT_S", 60.0)
    answers = [iter([b"step 1\n"]), ServiceError("it does not answer"), iter([b""])]

    def ask(offset):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with ThreadPoolExecutor(1) as threads:
        one = LogTail(ask, threads)
        said = []
        while answers:
            seen = one.read()
            said.append((seen.value, seen.failure))
    assert said == [("step 1\n", ""), ("step 1\n", "it does not answer"), ("step 1\n", "")]


@pytest.mark.parametrize(
    ("nodes", "queue", "least_milli"), [(13, 750, 150), (13, 100, 45), (80, 5000, 150)]
)
def test_the_page_of_a_large_cluster_is_small_and_fast(client, stand_in, nodes, queue, least_milli):
    stand_in.found = large(nodes, 8, queue, least_milli=least_milli)
    wait_until(lambda: f"of {nodes}</b>" in client.get("/").text)
    took_s = []
    for _ in range(3):
        began_s = time.process_time()
        page = client.get("/")
        took_s.append(time.process_time() - began_s)

    assert len(page.data) < MAX_BYTES
    assert "are shown" in page.text
    assert min(took_s) < MAX_S


def test_a_missing_controller_is_shown_without_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{taken.getsockname()[1]}"
    with Poller(lambda: ClusterClient(target, timeout_s=2.0)) as poller:
        access = PageAccess()
        asking = let_in(application(poller, target, access), access, "any.example")
        for path in ("/", "/jobs/a"):
            page = asking.get(path, base_url="http://any.example")
            assert page.status_code == 200
            assert "no response since" in page.text
            assert f"no controller at {target}" in page.text
            assert "has not responded yet" in page.text


@pytest.mark.parametrize(
    ("host", "words"), [("0.0.0.0", "--allow-remote"), ("no.such.", "no address")]
)
def test_other_addresses_than_loopback_need_permission(host, words):
    with pytest.raises(ServiceError, match=words):
        serve_pages(
            lambda: ClusterClient("x"), "x", host=host, port=0, allow_remote=False,
            on_ready=pytest.fail, stopped=threading.Event(),
        )  # fmt: skip


def test_a_port_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match="in use"):
            serve_pages(
                lambda: ClusterClient("x"), "x", host="127.0.0.1", port=port, allow_remote=False,
                on_ready=pytest.fail, stopped=threading.Event(),
            )  # fmt: skip


def test_the_command_serves_the_page_until_it_is_terminated(stand_in):
    command = [sys.executable, "-m", "presage", "cluster", "ui", "--port", "0"]
    with subprocess.Popen(
        [*command, "--controller", stand_in.target], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+/\?token=\S{43}", said)
        with browser().open(url, timeout=30) as answer:
            assert stand_in.target in answer.read().decode()
        process.terminate()
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


def test_the_server_stops_despite_an_open_client_connection(stand_in):
    with served(stand_in.target) as url:
        port = urlsplit(url).port
        idle = socket.create_connection(("127.0.0.1", port))
    idle.close()


def test_estimated_progress_is_marked(client, stand_in):
    stand_in.found = listing([running("silent", done=0.4, done_estimated=True)])
    for path in ("/", "/jobs/silent"):
        assert "~40 %" in client.get(path).text
    stand_in.found.jobs[0].done_estimated = False
    wait_until(lambda: "~40 %" not in client.get("/").text)


def test_a_recently_failed_job_needs_attention(client, stand_in):
    failed = pb.JobStatus(
        job=pb.Job(job_id="broken"), phase=pb.FAILED, reason="it ran out of memory"
    )
    stand_in.found.failed_jobs.append(failed)

    page = client.get("/").text
    trouble = page[page.index("Needs attention") : page.index("Recent events")]
    assert "/jobs/broken" in trouble
    assert "it ran out of memory" in trouble


def test_the_page_of_an_elastic_job_shows_sizes_workers_and_the_log_of_a_worker(client, stand_in):
    grows = f"it grows from 1 to 2 for {EVIL}"
    job = elastic("spirals", [("n0", 0), ("n1", 3, "ready")], [(5, 1, ""), (9, 2, grows)])
    stand_in.log = b"step 1\n"
    stand_in.found = listing([job], [node("n0"), node("n1", 4)])
    page = wait_until(lambda: "step 1" in (text := client.get("/jobs/spirals").text) and text)

    assert "<dd>2 of 1-4</dd>" in page
    assert EVIL not in page
    assert page.count("it grows from 1 to 2 for &lt;script&gt;") == 2  # chart and table
    assert "n1 : 3" in page
    assert "attempt 1, worker m1 on n0, as of" in page
    assert "<code>spirals/m2</code>" in page
    assert 'id="sizes"' not in client.get("/jobs/a").text


def test_an_ended_worker_is_an_event_in_words(stand_in):
    stand_in.events = [pb.Event(entry=7, type="MemberEnded", job_id="a", details="worker m2: left")]
    with Poller(lambda: ClusterClient(stand_in.target, timeout_s=2.0)) as poller:
        access = PageAccess()
        client = let_in(application(poller, stand_in.target, access), access)
        page = wait_until(lambda: "worker m2: left" in (text := client.get("/").text) and text)
    assert "<b>worker ended</b>" in page
