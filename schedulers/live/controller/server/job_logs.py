"""Logs of jobs, fetched from the agents of their nodes in parts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable

from presage.errors import ForbiddenError, NotYetError, ServiceError
from presage.schedulers.live.controller.controller import Controller
from presage.schedulers.live.controller.elastic.members import task_of_log
from presage.schedulers.live.controller.replayed_state import ENDED, LiveJob, Stage
from presage.schedulers.v1 import cluster_pb2 as pb

RESPONSE_TIMEOUT_S = 30.0  # of an agent, per part
FOLLOW_S = 0.5  # between requests for further output


class Logs:
    """Pending requests for parts of logs."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._requests: dict[str, dict[str, pb.LogRequest]] = {}  # by node
        self._responses: dict[str, asyncio.Future[pb.LogPart]] = {}

    def requests(self, node: str) -> list[pb.LogRequest]:
        """Return the pending requests for a node's agent."""
        return list(self._requests.get(node, {}).values())

    def receive(self, part: pb.LogPart, node: str = "") -> None:
        """Pass on a part that an agent sent; ignore it if its request has timed out.

        Parameters
        ----------
        node : str
            The only node whose requests the agent may respond to; "" for any.

        Raises
        ------
        ForbiddenError
            The request was for another node.
        """
        waiting = self._responses.get(part.request_id)
        if waiting is not None and node and part.request_id not in self._requests.get(node, {}):
            raise ForbiddenError(f"this part of a log was not requested from node {node!r}")
        if waiting is not None and not waiting.done():
            waiting.set_result(part)

    async def stream(
        self, request: pb.LogsRequest, check: Callable[[LiveJob], None] = lambda _: None
    ) -> AsyncGenerator[bytes, None]:
        """Yield a job's log from an offset, to its current end or, with ``follow``, its last.

        Parameters
        ----------
        check : callable
            Raises an error if the client may not read the job. Called for each part: the job may
            be removed meanwhile, and another user may submit one with the same id.

        Raises
        ------
        UnknownJobError
            The job, or the worker of an elastic job, does not exist.
        NotYetError
            The job has not run yet.
        ServiceError
            The node of the job does not respond.
        """
        offset, attempt, complete_attempt = request.offset, 0, 0
        while True:
            job = await self._controller.read(lambda core, _: core.job_of_log(request.job_id))
            check(job)
            if not job.starts:
                raise NotYetError(
                    f"job {request.job_id!r} has not run yet, so there is no log; see why it waits "
                    "with `presage cluster explain`"
                )
            if attempt and job.attempt != attempt:
                offset = 0
            attempt = job.attempt
            if (
                complete_attempt == attempt and job.stage is Stage.WAITING
            ):  # another attempt follows
                await asyncio.sleep(FOLLOW_S)
                continue
            task, node = task_of_log(job, request.job_id)
            name = pb.TaskName(job_id=task, attempt=job.attempt)
            part = await self._fetch(node, name, offset)
            # A part before the offset was read during a rotation of the log.
            if part.content and part.offset >= offset:
                yield part.content
            offset = max(offset, part.offset + len(part.content))
            if part.ended and (job.stage in ENDED or not request.follow):
                return
            if not part.content:
                if not request.follow:
                    return
                await asyncio.sleep(FOLLOW_S)
            # The agent may not have received a newly placed job yet.
            complete_attempt = attempt if part.ended and job.stage is not Stage.PLACED else 0

    async def _fetch(self, node: str, task: pb.TaskName, offset: int) -> pb.LogPart:
        request_id = secrets.token_hex(8)
        request = pb.LogRequest(request_id=request_id, task=task, offset=offset)
        self._responses[request_id] = asyncio.get_running_loop().create_future()
        self._requests.setdefault(node, {})[request_id] = request
        self._controller.commands_event(node).set()
        try:
            return await asyncio.wait_for(self._responses[request_id], RESPONSE_TIMEOUT_S)
        except TimeoutError:
            raise ServiceError(
                f"node {node!r} did not send the log of {task.job_id!r} within "
                f"{RESPONSE_TIMEOUT_S:g} s; see `presage cluster ps --nodes`"
            ) from None
        finally:
            del self._requests[node][request_id], self._responses[request_id]
