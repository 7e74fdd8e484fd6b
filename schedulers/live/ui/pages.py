"""WSGI application of the pages: renders the state in the poller as HTML."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jinja2
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter

from presage.errors import InvalidJobError, UnknownJobError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.client.elastic_text import size_text
from presage.schedulers.live.client.event_text import event_name
from presage.schedulers.live.protocol.submitted_job import MAX_NAME_LENGTH
from presage.schedulers.live.ui import figures
from presage.schedulers.live.ui.actions.action_pages import MAX_FORM_BYTES, ActionPages
from presage.schedulers.live.ui.actions.page_actions import (
    job_offers,
    node_offers,
    why_disabled,
)
from presage.schedulers.live.ui.bars import job_colour
from presage.schedulers.live.ui.cached_value import Snapshot
from presage.schedulers.live.ui.history.history_pages import add_history_pages
from presage.schedulers.live.ui.overview import (
    MAX_ISSUES,
    Query,
    head_of_queue,
    make_overview,
)
from presage.schedulers.live.ui.page_access import PageAccess
from presage.schedulers.live.ui.page_rows import device_kinds, make_row
from presage.schedulers.live.ui.placements import log_source
from presage.schedulers.live.ui.poller import Poller
from presage.schedulers.live.ui.size_chart import make_size_chart
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.page_templates import page_environment

_FOLDER = Path(__file__).with_name("templates")
_FILES = {"page.css": "text/css", "live.js": "text/javascript"}
_MAX_WORDS = 200
_HEADERS = {
    # Only files of this server, and nothing inline: a name that was not escaped could not run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "presage",
}


class _Name(BaseConverter):
    """Converter for job names, which may contain slashes anywhere."""

    regex = ".+"
    part_isolating = False


def application(
    poller: Poller,
    target: str,
    access: PageAccess,
    *,
    hosts: frozenset[str] | None = None,
    connect: Callable[[], ClusterClient] | None = None,
) -> Flask:
    """Return the application with the pages of a cluster.

    Parameters
    ----------
    target : str
        Address of the controller, for display.
    access : PageAccess
        Authentication of browsers; requests of others are answered with 403.
    hosts : frozenset of str, optional
        Host names that requests may use; any if left out. It protects a server on loopback against
        DNS rebinding by other websites.
    connect : callable, optional
        Returns a new connection to the controller for actions; without it, the page is read-only.
    """
    app = Flask("presage-cluster", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_FORM_BYTES
    app.url_map.merge_slashes = False
    app.url_map.converters["name"] = _Name
    files = {name: (_FOLDER / name).read_bytes() for name in _FILES}
    version = hashlib.sha256(b"".join(files.values())).hexdigest()[:12]
    render = partial(_render, _environment(), target=target, version=version)

    @app.before_request
    def check_host() -> Response | None:
        if hosts is None or _host_of(request.headers.get("Host", "")) in hosts:
            return None
        known = ", ".join(sorted(hosts))
        return Response(
            f"this page is served only under the names {known}; use one of them\n",
            HTTPStatus.MISDIRECTED_REQUEST,
            mimetype="text/plain",
        )

    @app.before_request
    def check_access() -> Response | None:
        return access.check(request)

    @app.after_request
    def add_headers(response: Response) -> Response:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    @app.get("/")
    def cluster() -> Response:
        return _cluster(poller, render, has_actions=connect is not None)

    @app.get("/jobs/", defaults={"job_id": ""})
    @app.get("/jobs/<name:job_id>")
    def job(job_id: str) -> Response:
        name = job_id or request.args.get("name", "")
        return _job(poller, render, name, has_actions=connect is not None)

    def file(name: str) -> Response:
        cached = {"Cache-Control": "private, max-age=86400"}  # the address contains the version
        return Response(files[name], mimetype=_FILES[name], headers=cached)

    add_history_pages(app, poller, render)
    ActionPages(poller, access, render, connect).add_to(app)
    for name in _FILES:
        app.add_url_rule(f"/{name}", name, partial(file, name))
    app.register_error_handler(HTTPException, _error_response)
    return app


def _cluster(poller: Poller, render: Callable[..., Response], *, has_actions: bool) -> Response:
    args = request.args
    state = args.get("state", "")
    states = (*figures.STATES, "waiting")
    query = Query(
        args.get("q", "")[:_MAX_WORDS].strip(),
        state if state in states else "",
        args.get("all") == "1",
    )
    snapshot = poller.cluster()
    found = snapshot.value
    view = None
    if found is not None:
        view = make_overview(found, query, poller.explanations(head_of_queue(found, query)))
    all_args = {"q": query.words, "state": query.state, "all": "1"}
    return render(
        "overview.html.j2",
        snapshot,
        view=view,
        starts=poller.starts() if view is not None and view.n_queue else {},
        query=query,
        states=states,
        slo_violated=figures.SLO_VIOLATED,
        events=poller.events(),
        max_issues=MAX_ISSUES,
        has_actions=has_actions,
        disabled=why_disabled(found, is_allowed=has_actions),
        node_offers={node.name: node_offers(node) for node in found.nodes} if found else {},
        all_url=f"/?{figures.query_string({k: v for k, v in all_args.items() if v})}",
        policy=found.policy if found else "",
        forecaster=found.forecaster_error if found else "",
    )


def _job(
    poller: Poller, render: Callable[..., Response], job_id: str, *, has_actions: bool
) -> Response:
    snapshot: Snapshot[pb.Explanation] = Snapshot()
    unknown, log, row = "", None, None
    try:
        if len(job_id) > MAX_NAME_LENGTH:
            raise UnknownJobError(f"no job has a name of {len(job_id)} characters")
        snapshot = poller.job(job_id)
    except (UnknownJobError, InvalidJobError) as error:
        unknown = f"{error}."
    found = snapshot.value
    offers, disabled = [], ""
    if found is not None:
        offers = job_offers(found.status)
        nodes = poller.cluster().value if offers else None
        disabled = why_disabled(nodes, is_allowed=has_actions, row=found.status)
        if found.status.attempt:
            log = poller.log(found.status)
        if found.status.phase in figures.ON_NODE:
            kinds = device_kinds(nodes.nodes if nodes else ())
            row = make_row(found.status, kinds)
    return render(
        "job.html.j2",
        snapshot,
        status=HTTPStatus.NOT_FOUND if unknown else HTTPStatus.OK,
        name=job_id[:MAX_NAME_LENGTH],
        found=found,
        start=poller.starts().get(job_id) if found and found.status.phase == pb.WAITING else None,
        unknown=unknown,
        row=row,
        size=size_text(found.status) if found else "",
        colour=job_colour(job_id),
        chart=make_size_chart(found.status, snapshot.at_unix_s) if found else None,
        log_source=log_source(found.status) if found else "",
        state=figures.display_state(found.status) if found else "",
        command=shlex.join(found.status.job.command) if found else "",
        log=log,
        offers=offers,
        disabled=disabled,
    )


def _render(
    environment: jinja2.Environment,
    template: str,
    snapshot: Snapshot[Any],
    *,
    status: HTTPStatus = HTTPStatus.OK,
    **values: Any,
) -> Response:
    values = {"policy": "", "forecaster": "", "here": request.path, **values}
    text = environment.get_template(template).render(
        failure=snapshot.failure,
        since=snapshot.failing_since_unix_s,
        at=snapshot.at_unix_s,
        **values,
    )
    return Response(text, status, mimetype="text/html")


def _environment() -> jinja2.Environment:
    environment = page_environment(_FOLDER)
    filters: Mapping[str, Callable[..., str]] = {
        "clock": figures.clock,
        "moment": partial(figures.clock, day=True),
        "duration": figures.format_duration,
        "size": figures.size,
        "percent": figures.percent,
        "done_text": figures.done_text,
        "share": figures.share,
        "start_text": figures.start_text,
        "forecast_quality": figures.forecast_quality,
        "job_url": figures.job_url,
        "event_name": event_name,
        "quoted": shlex.quote,
    }
    environment.filters.update(filters)
    return environment


def _host_of(header: str) -> str:
    """Return the host of a Host header without its port; "" if it is not valid."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _error_response(error: HTTPException) -> Response:
    text = f"{error.code} {error.name}: the pages are /, /history, /ended and /jobs/NAME\n"
    return Response(text, error.code, mimetype="text/plain")
