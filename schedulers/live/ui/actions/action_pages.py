"""Page ``/actions``: confirmation (GET) and execution (POST) of an action."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus

from flask import Flask, Response, request

from presage.errors import (
    ForbiddenError,
    InvalidJobError,
    PresageError,
    UnauthenticatedError,
    UnknownJobError,
)
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.protocol.submitted_job import MAX_NAME_LENGTH
from presage.schedulers.live.ui.actions.page_actions import (
    ACTIONS,
    READ_ONLY,
    Action,
    Options,
    why_disabled,
)
from presage.schedulers.live.ui.cached_value import Snapshot
from presage.schedulers.live.ui.figures import job_url
from presage.schedulers.live.ui.page_access import PageAccess
from presage.schedulers.live.ui.poller import Poller
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.server.log import log

MAX_REASON = 256  # characters; the controller's maximum
MAX_FORM_BYTES = 16 * 1024
_STATUSES: dict[type[PresageError], HTTPStatus] = {
    ForbiddenError: HTTPStatus.FORBIDDEN,
    UnauthenticatedError: HTTPStatus.FORBIDDEN,
    UnknownJobError: HTTPStatus.NOT_FOUND,
    InvalidJobError: HTTPStatus.BAD_REQUEST,
}


class ActionPages:
    """Handlers of the page.

    Parameters
    ----------
    connect : callable or None
        Returns a new connection to the controller; None if the page is read-only.
    """

    def __init__(
        self,
        poller: Poller,
        access: PageAccess,
        render: Callable[..., Response],
        connect: Callable[[], ClusterClient] | None,
    ) -> None:
        self._poller, self._access, self._render = poller, access, render
        self._connect = connect

    def add_to(self, app: Flask) -> None:
        """Add the page to an application."""
        app.add_url_rule("/actions", "confirm", self._confirm, methods=["GET"])
        app.add_url_rule("/actions", "perform", self._perform, methods=["POST"])

    def _confirm(self) -> Response:
        action = ACTIONS.get(request.args.get("do", ""))
        name = request.args.get("name", "")
        if action is None or not _is_name(name):
            return _plain(HTTPStatus.NOT_FOUND, "no such action, or no name of a job or node")
        snapshot = self._poller.cluster()
        row = _job(snapshot.value, name) if action.is_job else None
        if action.is_job and row is None:
            disabled = READ_ONLY if self._connect is None else ""
        else:
            disabled = why_disabled(snapshot.value, is_allowed=self._connect is not None, row=row)
        return self._show(action, name, snapshot, disabled=disabled)

    def _perform(self) -> Response:
        problem = self._access.form_problem(request)
        if problem:
            log(logging.WARNING, "action rejected", client=request.remote_addr, error=problem)
            return _plain(HTTPStatus.FORBIDDEN, problem)
        form = request.form
        action, name = ACTIONS.get(form.get("do", "")), form.get("name", "")
        if action is None or not _is_name(name):
            return _plain(HTTPStatus.BAD_REQUEST, "no such action, or no name of a job or node")
        if self._connect is None:
            return _plain(HTTPStatus.FORBIDDEN, READ_ONLY)
        options = Options(form.get("evict") == "1", form.get("reason", "").strip()[:MAX_REASON])
        try:
            with self._connect() as client:
                action.run(client, name, options)
        except PresageError as error:
            status = _STATUSES.get(type(error), HTTPStatus.SERVICE_UNAVAILABLE)
            snapshot = self._poller.cluster()
            return self._show(
                action, name, snapshot, problem=str(error), options=options, status=status
            )
        log(logging.INFO, "action", action=action.name, name=name, client=request.remote_addr)
        where = job_url(name) if action.is_job else "/#nodes"
        return Response(status=HTTPStatus.SEE_OTHER, headers={"Location": where})

    def _show(
        self,
        action: Action,
        name: str,
        snapshot: Snapshot[pb.ListResponse],
        *,
        problem: str = "",
        disabled: str = "",
        options: Options = Options(),  # noqa: B008 - immutable
        status: HTTPStatus = HTTPStatus.OK,
    ) -> Response:
        response = self._render(
            "action.html.j2",
            snapshot,
            status=status,
            action=action,
            name=name,
            problem=problem,
            disabled=disabled,
            options=options,
            max_reason=MAX_REASON,
            csrf=self._access.csrf_token(request),
            back=job_url(name) if action.is_job else "/#nodes",
        )
        # Browsers send no Origin with a form of a page whose policy is no-referrer.
        response.headers["Referrer-Policy"] = "same-origin"
        return response


def _job(found: pb.ListResponse | None, name: str) -> pb.JobStatus | None:
    rows = () if found is None else found.jobs
    return next((row for row in rows if row.job.job_id == name), None)


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_LENGTH


def _plain(status: HTTPStatus, text: str) -> Response:
    return Response(f"{text}\n", status, mimetype="text/plain")
