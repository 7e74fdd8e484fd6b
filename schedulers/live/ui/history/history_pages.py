"""Pages ``/history`` and ``/ended``."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from flask import Flask, Response, request

from presage.schedulers.live.ui.history.ended_jobs import (
    MAX_PAGE,
    make_ended_jobs,
)
from presage.schedulers.live.ui.history.history_chart import SPANS, make_charts
from presage.schedulers.live.ui.poller import Poller


def add_history_pages(app: Flask, poller: Poller, render: Callable[..., Response]) -> None:
    """Add the pages to an application."""

    @app.get("/history")
    def history() -> Response:
        return _history(poller, render)

    @app.get("/ended")
    def ended() -> Response:
        return _ended(poller, render)


def _history(poller: Poller, render: Callable[..., Response]) -> Response:
    span = SPANS.get(request.args.get("span", ""), SPANS["hour"])
    snapshot = poller.cluster()
    history = poller.history(span.name)
    found = history.value
    return render(
        "history.html.j2",
        snapshot,
        span=span,
        spans=SPANS,
        problem=history.failure,
        has_errors=found is None or found.has_errors,
        charts=None if found is None else make_charts(found, span, history.at_unix_s),
        **_facts(snapshot.value),
    )


def _ended(poller: Poller, render: Callable[..., Response]) -> Response:
    text = request.args.get("page", "1")
    page = int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0
    if not 1 <= page <= MAX_PAGE:
        text = f"page: give a number from 1 to {MAX_PAGE}\n"
        return Response(text, HTTPStatus.BAD_REQUEST, mimetype="text/plain")
    snapshot = poller.ended(page)
    found = snapshot.value
    return render(
        "ended.html.j2",
        snapshot,
        ended=None if found is None else make_ended_jobs(found, page),
        **_facts(found),
    )


def _facts(found: object) -> dict[str, str]:
    return {
        "policy": getattr(found, "policy", ""),
        "forecaster": getattr(found, "forecaster_error", ""),
    }
