"""Actions of the page, with the tokens of a real controller, and attacks on them."""

from __future__ import annotations

import http.client
import re
from contextlib import contextmanager
from urllib.parse import quote, urlencode, urlsplit

import pytest

from presage.errors import ServiceError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.ui.actions.page_actions import READ_ONLY, why_disabled
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.client.credentials import Credentials
from tests.schedulers.live.cluster import until
from tests.schedulers.live.controller.users import Users
from tests.schedulers.live.ui.conftest import served

EVIL = "<script>alert(1)</script>"


class Page:
    """Browser that has opened the page of a user's token."""

    def __init__(self, link):
        self.where = urlsplit(link)
        opened, _ = self.ask("GET", f"/?{self.where.query}", cookie="")
        self.cookie = opened.getheader("Set-Cookie").partition(";")[0]
        self.origin = f"http://{self.where.netloc}"

    def ask(self, method, path, body="", *, cookie=None, **headers):
        connection = http.client.HTTPConnection(self.where.hostname, self.where.port, timeout=60)
        sent = {"Cookie": self.cookie if cookie is None else cookie}
        if body:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        sent |= {name.replace("_", "-"): value for name, value in headers.items() if value}
        try:
            connection.request(method, path, body or None, sent)
            answer = connection.getresponse()
            return answer, answer.read().decode()
        finally:
            connection.close()

    def csrf(self, do="hold", name="anns"):
        _, text = self.ask("GET", f"/actions?do={do}&name={quote(name, safe='')}")
        (found,) = re.findall('name="csrf" value="([0-9a-f]{64})"', text)
        return found

    def act(self, do, name, *, csrf=None, method="POST", cookie=None, headers=None, **fields):
        fields = {"do": do, "name": name, "csrf": self.csrf() if csrf is None else csrf} | fields
        headers = {"Origin": self.origin} | (headers or {})
        path = "/actions" if method == "POST" else f"/actions?{urlencode(fields)}"
        body = urlencode(fields) if method == "POST" else ""
        return self.ask(method, path, body, cookie=cookie, **headers)


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    users = Users(tmp_path_factory.mktemp("users"))
    with users.client("ann") as ann, users.client("bob") as bob:
        ann.submit([users.job("anns"), users.job("again"), users.job(EVIL)])
        bob.submit([pb.Job(job_id="bobs", command=["true"])])
    yield users
    users.stop()


@contextmanager
def page_of(users, name, *, allow_actions=True):
    credentials = Credentials(users.tokens[name])

    def connect():
        return ClusterClient(users.target, credentials=credentials, timeout_s=20.0)

    with served(users.target, connect=connect, allow_actions=allow_actions) as link:
        yield Page(link)


@pytest.fixture(scope="module")
def anns(users):
    with page_of(users, "ann") as page:
        yield page


@pytest.fixture(scope="module")
def ops(users):
    with page_of(users, "root") as page:
        yield page


def held(users, name):
    with users.client("root") as client:
        return client.list([name]).jobs[0].held


def test_a_submitter_holds_releases_and_cancels_an_own_job(users, anns):
    _, text = anns.ask("GET", "/jobs/again")
    assert 'href="/actions?do=hold&amp;name=again"' in text
    answer, _ = anns.act("hold", "again")
    assert (answer.status, answer.getheader("Location")) == (303, "/jobs/again")
    assert held(users, "again")
    anns.act("release", "again")
    assert not held(users, "again")
    anns.act("cancel", "again")
    with users.client("ann") as client:
        assert client.list(["again"]).jobs[0].phase == pb.CANCELLED


def test_an_administrator_drains_and_resumes_a_node(users, ops):
    with users.agent("n0", "n0"), users.client("root") as client:
        until(lambda: client.list().nodes)
        _, text = ops.ask("GET", "/")
        assert 'href="/actions?do=drain&amp;name=n0"' in text
        ops.act("drain", "n0", reason="fan replaced")
        (node,) = client.list().nodes
        assert node.drained
        assert "fan replaced" in node.reason
        answer, _ = ops.act("resume", "n0")
        assert answer.getheader("Location") == "/#nodes"
        assert not client.list().nodes[0].drained


def test_a_submitter_cannot_drain_a_node(users, anns):
    answer, text = anns.act("drain", "n0")
    assert answer.status == 403
    assert "It was not done." in text
    assert "lacks the role &#39;admin&#39;" in text


def test_a_job_of_another_user_is_refused_in_plain_words(users, anns):
    _, text = anns.ask("GET", "/actions?do=cancel&name=bobs")
    assert "the job belongs to bob, and this page&#39;s token to ann" in text
    assert "<form" not in text
    answer, text = anns.act("cancel", "bobs")
    assert answer.status == 403
    assert "job &#39;bobs&#39; is not yours, &#39;ann&#39;" in text
    with users.client("bob") as client:
        assert client.list(["bobs"]).jobs[0].phase == pb.WAITING


def test_a_viewers_token_is_refused_by_the_page_and_by_the_controller(users, anns):
    with page_of(users, "eve") as page:
        _, text = page.ask("GET", "/actions?do=hold&name=anns")
        assert "this page has no token with the role submit or admin" in text
        answer, text = page.act("hold", "anns", csrf=page.csrf("hold", "no-job"))
    assert (answer.status, held(users, "anns")) == (403, False)
    assert "It was not done." in text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://["},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_a_form_of_another_site_is_rejected(users, anns, headers):
    answer, text = anns.act("hold", "anns", headers=headers)
    assert (answer.status, held(users, "anns")) == (403, False)
    assert "the form was not sent by this page" in text


def test_another_port_of_this_host_is_another_origin(users, anns):
    for origin in ("http://127.0.0.1:1", "http://127.0.0.1", f"file://{anns.where.netloc}"):
        assert anns.act("hold", "anns", headers={"Origin": origin})[0].status == 403
    assert not held(users, "anns")


def test_a_form_without_the_token_of_its_session_is_rejected(users, anns):
    _, text = anns.act("hold", "anns", csrf="")
    assert "no valid token of this session" in text
    other = Page(f"{anns.origin}/?{anns.where.query}")
    for csrf in ("x", other.csrf(), anns.csrf()[:-1]):
        assert anns.act("hold", "anns", csrf=csrf)[0].status == 403
    assert anns.act("hold", "anns", cookie="")[0].status == 403
    forged = f"{anns.cookie.partition('=')[0]}=x.{'0' * 64}"
    assert anns.act("hold", "anns", cookie=forged)[0].status == 403
    assert not held(users, "anns")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_no_other_method_acts(users, anns, method):
    answer, _ = anns.act("hold", "anns", method=method)
    assert answer.status in (200, 405)
    assert not held(users, "anns")


def test_names_with_scripts_are_shown_as_text_and_work(users, anns):
    _, text = anns.ask("GET", f"/actions?do=hold&name={quote(EVIL, safe='')}")
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert anns.act("hold", EVIL)[0].status == 303
    assert held(users, EVIL)
    answer, text = anns.act("cancel", f"none {EVIL}")
    assert answer.status == 404
    assert "<script" not in text


@pytest.mark.parametrize(
    ("do", "name"), [("", "anns"), ("explode", "anns"), ("hold", ""), ("hold", "x" * 1000)]
)
def test_an_unknown_action_or_no_name_is_rejected(anns, do, name):
    assert anns.act(do, name)[0].status == 400
    assert anns.ask("GET", f"/actions?{urlencode({'do': do, 'name': name})}")[0].status == 404


def test_a_large_form_is_rejected(anns):
    answer, _ = anns.act("hold", "anns", reason="x" * 100_000)
    assert answer.status == 413


def test_a_read_only_page_says_how_to_allow_actions(users):
    with page_of(users, "root", allow_actions=False) as page:
        _, text = page.ask("GET", "/jobs/anns")
        assert "Disabled: this page only shows the cluster" in text
        assert 'href="/actions' not in text + page.ask("GET", "/")[1]
        assert page.act("hold", "anns", csrf="x")[0].status == 403
    assert not held(users, "anns")


def test_pages_that_act_stay_on_loopback():
    with (
        pytest.raises(ServiceError, match="leave out --allow-actions"),
        served("127.0.0.1:1", host="0.0.0.0", allow_remote=True, allow_actions=True),
    ):
        pass


def test_only_the_confirmation_sends_its_origin(anns):
    answer, text = anns.ask("GET", "/actions?do=hold&name=anns")
    assert answer.getheader("Referrer-Policy") == "same-origin"
    assert "live.js" not in text  # a refresh would lose what the reader types
    assert anns.ask("GET", "/")[0].getheader("Referrer-Policy") == "no-referrer"


def test_reasons_why_actions_are_disabled():
    row = pb.JobStatus(job=pb.Job(job_id="a", user="ann"))

    def why(*roles, client="ann", row=row):
        found = pb.ListResponse(client=client, client_roles=roles)
        return why_disabled(found, is_allowed=True, row=row)

    assert why("submit") == why("admin", client="root") == why("admin", row=None) == ""
    assert "the job belongs to ann" in why("submit", client="bob")
    assert "lacks the role admin" in why("submit", row=None)
    assert "no token" in why("view")
    assert "earlier version" in why()
    assert why_disabled(None, is_allowed=False) == READ_ONLY
    assert "not responded" in why_disabled(None, is_allowed=True)
