"""The pages as a WSGI application: what is asked of the lookout, as HTML."""

from __future__ import annotations

import hashlib
import re
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
from presage.schedulers.live.protocol.submitted_job import MOST_NAME
from presage.schedulers.live.ui import figures
from presage.schedulers.live.ui.cached_value import Seen
from presage.schedulers.live.ui.overview import (
    MOST_TROUBLE,
    Wanted,
    head_of_queue,
    overview_of,
)
from presage.schedulers.live.ui.page_access import PageAccess
from presage.schedulers.live.ui.page_rows import kinds_of, row_of
from presage.schedulers.live.ui.poller import Poller
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.page_templates import page_environment

_FOLDER = Path(__file__).with_name("templates")
_FILES = {"page.css": "text/css", "live.js": "text/javascript"}
_MOST_WORDS = 200
_HEADERS = {
    # Nothing but what this server gives out, and nothing inline: a name that slipped through as
    # HTML would still not run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "presage",
}


class _Name(BaseConverter):
    """A job's name, which may have slashes, also at its ends."""

    regex = ".+"
    part_isolating = False


def application(
    poller: Poller, target: str, access: PageAccess, *, hosts: frozenset[str] | None = None
) -> Flask:
    """The pages of a cluster.

    Parameters
    ----------
    target : str
        Where the controller is, to be shown.
    access : PageAccess
        Which browsers are let in; the others are answered 403.
    hosts : frozenset of str, optional
        Names that the server may be asked by; any if left out. On loopback a page elsewhere could
        else have its own name lead here (DNS rebinding), and read what only this machine may.
    """
    app = Flask("presage-cluster", static_folder=None)
    app.url_map.merge_slashes = False
    app.url_map.converters["name"] = _Name
    files = {name: (_FOLDER / name).read_bytes() for name in _FILES}
    version = hashlib.sha256(b"".join(files.values())).hexdigest()[:12]
    render = partial(_rendered, _environment(), target=target, version=version)

    @app.before_request
    def check_host() -> Response | None:
        if hosts is None or _host_of(request.headers.get("Host", "")) in hosts:
            return None
        known = ", ".join(sorted(hosts))
        return Response(
            f"this page answers to {known} alone; ask it by one of these names\n",
            HTTPStatus.MISDIRECTED_REQUEST,
            mimetype="text/plain",
        )

    @app.before_request
    def check_access() -> Response | None:
        return access.check(request)

    @app.after_request
    def add_headers(response: Response) -> Response:
        response.headers.update(_HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    @app.get("/")
    def cluster() -> Response:
        return _cluster(poller, render)

    @app.get("/jobs/", defaults={"job_id": ""})
    @app.get("/jobs/<name:job_id>")
    def job(job_id: str) -> Response:
        return _job(poller, render, job_id or request.args.get("name", ""))

    def file(name: str) -> Response:
        cached = {"Cache-Control": "private, max-age=86400"}  # its address has its version
        return Response(files[name], mimetype=_FILES[name], headers=cached)

    for name in _FILES:
        app.add_url_rule(f"/{name}", name, partial(file, name))
    app.register_error_handler(HTTPException, _refused)
    return app


def _cluster(poller: Poller, render: Callable[..., Response]) -> Response:
    asked = request.args
    state = asked.get("state", "")
    states = (*figures.STATES, "waiting")
    wanted = Wanted(
        asked.get("q", "")[:_MOST_WORDS].strip(),
        state if state in states else "",
        asked.get("all") == "1",
    )
    seen = poller.cluster()
    found = seen.found
    view = None
    if found is not None:
        view = overview_of(found, wanted, poller.whys(head_of_queue(found, wanted)))
    kept = {"q": wanted.words, "state": wanted.state, "all": "1"}
    return render(
        "overview.html.j2",
        seen,
        view=view,
        wanted=wanted,
        states=states,
        events=poller.events(),
        most_trouble=MOST_TROUBLE,
        all_url=f"/?{figures.query({name: value for name, value in kept.items() if value})}",
        policy=found.policy if found else "",
        forecaster=found.forecaster if found else "",
    )


def _job(poller: Poller, render: Callable[..., Response], job_id: str) -> Response:
    seen: Seen[pb.Explanation] = Seen()
    unknown, log, row = "", None, None
    try:
        if len(job_id) > MOST_NAME:
            raise UnknownJobError(f"no job has a name of {len(job_id)} characters")
        seen = poller.job(job_id)
    except (UnknownJobError, InvalidJobError) as error:
        unknown = f"{error}."
    found = seen.found
    if found is not None:
        if found.status.attempt:
            log = poller.log(found.status)
        if found.status.phase in figures.ON_NODE:
            nodes = poller.cluster().found
            kinds = kinds_of(nodes.nodes if nodes else ())
            row = row_of(found.status, kinds.get(found.status.node, ()))
    return render(
        "job.html.j2",
        seen,
        status=HTTPStatus.NOT_FOUND if unknown else HTTPStatus.OK,
        name=job_id[:MOST_NAME],
        found=found,
        unknown=unknown,
        row=row,
        state=figures.state_of(found.status) if found else "",
        command=shlex.join(found.status.job.command) if found else "",
        log=log,
    )


def _rendered(
    environment: jinja2.Environment,
    template: str,
    seen: Seen[Any],
    *,
    status: HTTPStatus = HTTPStatus.OK,
    **values: Any,
) -> Response:
    values = {"policy": "", "forecaster": "", **values}
    text = environment.get_template(template).render(
        failure=seen.failure, since=seen.since_unix_s, at=seen.at_unix_s, **values
    )
    return Response(text, status, mimetype="text/html")


def _environment() -> jinja2.Environment:
    environment = page_environment(_FOLDER)
    filters: Mapping[str, Callable[..., str]] = {
        "clock": figures.clock,
        "moment": partial(figures.clock, day=True),
        "how_long": figures.how_long,
        "size": figures.size,
        "percent": figures.percent,
        "done_of": figures.done_of,
        "share": figures.share,
        "known": figures.known,
        "job_url": figures.job_url,
        "words": _words,
        "quoted": shlex.quote,
    }
    environment.filters.update(filters)
    return environment


def _words(name: str) -> str:
    """NodeJoined as "node joined"."""
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _host_of(header: str) -> str:
    """The host of a Host header, without its port; "" where it is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _refused(error: HTTPException) -> Response:
    said = f"{error.code} {error.name}: there is / and /jobs/NAME, to be read\n"
    return Response(said, error.code, mimetype="text/plain")
