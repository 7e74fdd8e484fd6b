"""Access to the pages over HTTP: only for browsers that opened the address with the token."""

from __future__ import annotations

import http.client
import logging
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from tests.schedulers.live.ui.conftest import served
from tests.schedulers.live.ui.stand_in import StandIn, listing, running
from tests.schedulers.live.ui.test_pages import browser

PATHS = ("/", "/jobs/a", "/page.css", "/live.js", "/nothing", "/?token=", "/?token=wrong")


@pytest.fixture(scope="module")
def link():
    with StandIn(listing([running("a")])) as stand_in, served(stand_in.target) as url:
        yield url


def ask(link, path, **headers):
    where = urlsplit(link)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read().decode()
    finally:
        connection.close()


def cookie_of(link):
    answer, _ = ask(link, f"/?{urlsplit(link).query}")
    return answer.getheader("Set-Cookie").partition(";")[0]


@pytest.mark.parametrize("path", PATHS)
def test_a_browser_without_access_is_refused(link, path):
    for headers in ({}, {"Cookie": cookie_of(link)[:-1] + "~"}, {"Cookie": "x=y"}):
        answer, text = ask(link, path, **headers)
        assert answer.status == 403
        assert "`presage cluster ui` printed" in text
        assert answer.getheader("Set-Cookie") is None


def test_the_token_is_exchanged_for_a_cookie_hidden_from_scripts_and_other_sites(link):
    answer, _ = ask(link, f"/?{urlsplit(link).query}")
    name, *attributes = answer.getheader("Set-Cookie").split("; ")

    assert (answer.status, answer.getheader("Location")) == (303, "/")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(attributes)
    assert urlsplit(link).query.partition("=")[2] not in name
    assert ask(link, "/", Cookie=name)[0].status == 200


def test_a_browser_that_opened_the_address_keeps_access(link):
    asks, base = browser(), link.partition("?")[0]
    for address in (link, base, f"{base}jobs/a", f"{base}live.js"):
        with asks.open(address, timeout=30) as answer:
            assert answer.status == 200
            assert "token" not in answer.url


def test_another_host_name_is_rejected_even_with_the_token(link):
    answer, _ = ask(link, f"/?{urlsplit(link).query}", Host="evil.example")
    assert (answer.status, answer.getheader("Set-Cookie")) == (421, None)


def test_every_response_forbids_caching_sniffing_framing_and_referrers(link):
    responses = [ask(link, path)[0] for path in PATHS]
    responses += [
        ask(link, "/", Cookie=cookie_of(link))[0],
        ask(link, f"/?{urlsplit(link).query}")[0],
    ]
    for answer in responses:
        assert answer.getheader("Content-Security-Policy").startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in answer.getheader("Content-Security-Policy")
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Referrer-Policy") == "no-referrer"
        assert answer.getheader("Cache-Control") == "no-store"
        assert answer.getheader("Server") == "presage"


def test_a_wrong_token_is_logged_without_its_value(caplog):
    with (
        StandIn(listing([])) as stand_in,
        served(stand_in.target) as link,
        caplog.at_level(logging.WARNING),
    ):
        for _ in range(4):
            ask(link, "/?token=guess-a-token")
        ask(link, "/")  # without a token, like a bookmark
    logged = [one for one in caplog.records if one.getMessage() == "authentication failed"]
    assert logged[0].fields["failures"] == 1
    assert logged[0].fields["client"] == "127.0.0.1"
    assert all("guess" not in str(vars(record)) for record in caplog.records)


def test_the_token_of_a_previous_run_is_rejected(link):
    with StandIn(listing([running("a")])) as stand_in, served(stand_in.target) as other:
        old = urlsplit(link).query
        with pytest.raises(urllib.error.HTTPError, match="403"):
            browser().open(f"{other.partition('?')[0]}?{old}", timeout=30)
