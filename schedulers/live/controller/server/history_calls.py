"""Method ``History`` of ``ClusterService``."""

from __future__ import annotations

import asyncio
import time

from presage.errors import ServiceError
from presage.schedulers.live.controller.history.history_file import MINUTE_S, HistoryFile
from presage.schedulers.live.controller.history.history_points import (
    make_points,
    requested_minutes,
)
from presage.schedulers.v1 import cluster_pb2 as pb


async def answer_history(
    request: pb.HistoryRequest, file: HistoryFile | None, *, sees_errors: bool
) -> pb.HistoryResponse:
    """Return the requested points.

    Parameters
    ----------
    sees_errors : bool
        Whether the client may see the errors of forecasts, of all users' jobs.

    Raises
    ------
    InvalidRequestError
        The times or the step are not valid, or there are too many steps.
    ServiceError
        The controller records no history.
    """
    first, last, step_minutes = requested_minutes(request, time.time())
    if file is None:
        raise ServiceError(
            "this controller records no history, because its file cannot be used; see its log"
        )

    def read() -> list[pb.HistoryPoint]:
        try:
            rows = file.read(first, last)
        except OSError as error:
            raise ServiceError(f"the history cannot be read ({error.strerror})") from error
        return make_points(rows, step_minutes, has_errors=sees_errors)

    points = await asyncio.to_thread(read)
    return pb.HistoryResponse(points=points, step_s=step_minutes * MINUTE_S, has_errors=sees_errors)
