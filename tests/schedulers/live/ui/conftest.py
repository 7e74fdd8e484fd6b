"""Fixtures of the page of a cluster and of a browser."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import Any

import pytest

from presage.errors import ServiceError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.ui.page_server import serve_pages

ANSWER_S = 3.0  # timeout of requests to a controller
LONG_MS = 30_000  # for a machine that is busy with other tests


@contextmanager
def served(target, *, connect=None, **more):
    """Serve the pages of a controller; yield the address that gives a browser access."""
    ready, stopped, at, errors = threading.Event(), threading.Event(), [], []

    def note(url):
        at.append(url)
        ready.set()

    options: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "allow_remote": False} | more
    connect = connect or (lambda: ClusterClient(target, timeout_s=ANSWER_S))

    def serve():
        try:
            serve_pages(connect, target, **options, on_ready=note, stopped=stopped)
        except ServiceError as error:
            errors.append(error)
            ready.set()

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        assert ready.wait(30)
        if errors:
            raise errors[0]
        yield at[0]
    finally:
        stopped.set()
        serving.join(30)
        assert not serving.is_alive()


@pytest.fixture
def show(browser):
    """Return a function that opens an address; ``said`` holds the page's console messages."""
    contexts = []

    def shown(url, **options):
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LONG_MS)
        page.said = []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.goto(url, wait_until="load")
        return page

    yield shown
    for context in contexts:
        context.close()


def wait_until(page, expression):
    """Wait until an expression is true; the page's policy forbids eval, as used by Playwright."""
    deadline = time.monotonic() + LONG_MS / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def refreshed(page, times=1):
    """Wait until the page has been refreshed a number of times."""
    shown = "Number(document.documentElement.dataset.shown || 0)"
    wait_until(page, f"{shown} >= {page.evaluate(shown) + times}")
