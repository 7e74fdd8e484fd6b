"""What jobs wrote, fetched from their nodes: their agents are told of each question, and answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable

from presage.errors import ForbiddenError, NotYetError, ServiceError
from presage.schedulers.live.controller.controller import Controller
from presage.schedulers.live.controller.replayed_state import OVER, LiveJob, Stage
from presage.schedulers.v1 import cluster_pb2 as pb

ANSWER_S = 30.0  # that an agent may take
FOLLOW_S = 0.5  # from one look for more to the next


class Logs:
    """Questions for parts of logs, and their answers."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._asked: dict[str, dict[str, pb.LogRequest]] = {}  # by node
        self._answers: dict[str, asyncio.Future[pb.LogPart]] = {}

    def wanted(self, node: str) -> list[pb.LogRequest]:
        """What a node's agent is asked for."""
        return list(self._asked.get(node, {}).values())

    def answer(self, part: pb.LogPart, node: str = "") -> None:
        """Take what an agent sent; its request may have been given up by then.

        Parameters
        ----------
        node : str
            The only node that the agent may answer for; "" for any.

        Raises
        ------
        ForbiddenError
            Another node was asked.
        """
        waiting = self._answers.get(part.request_id)
        if waiting is not None and node and part.request_id not in self._asked.get(node, {}):
            raise ForbiddenError(f"node {node!r} was not asked for this part of a log")
        if waiting is not None and not waiting.done():
            waiting.set_result(part)

    async def of_job(
        self, request: pb.LogsRequest, check: Callable[[LiveJob], None] = lambda _: None
    ) -> AsyncGenerator[bytes, None]:
        """A job's log from an offset on, to its end or for as long as it grows.

        Parameters
        ----------
        check : callable
            Raises where the job may not be read. It is called for each part: a job that was
            forgotten meanwhile may be followed by another user's of its name.

        Raises
        ------
        UnknownJobError
            There is no such job.
        NotYetError
            It has run nowhere yet.
        ServiceError
            Its node does not answer.
        """
        offset, attempt, read = request.offset, 0, 0
        while True:
            job = await self._controller.look(lambda core, _: core.job(request.job_id))
            check(job)
            if not job.starts:
                raise NotYetError(
                    f"job {request.job_id!r} has not run yet, so there is no log; see why it waits "
                    "with `presage cluster explain`"
                )
            if attempt and job.attempt != attempt:
                offset = 0
            attempt = job.attempt
            if read == attempt and job.stage is Stage.WAITING:  # for another one, which is to come
                await asyncio.sleep(FOLLOW_S)
                continue
            name = pb.TaskName(job_id=job.job_id, attempt=job.attempt)
            part = await self._ask(job.node, name, offset)
            # A part from further back was read while its log began anew.
            if part.content and part.offset >= offset:
                yield part.content
            offset = max(offset, part.offset + len(part.content))
            if part.ended and (job.stage in OVER or not request.follow):
                return
            if not part.content:
                if not request.follow:
                    return
                await asyncio.sleep(FOLLOW_S)
            # Of a job that was only just placed its agent need not have heard yet.
            read = attempt if part.ended and job.stage is not Stage.PLACED else 0

    async def _ask(self, node: str, task: pb.TaskName, offset: int) -> pb.LogPart:
        request_id = secrets.token_hex(8)
        wanted = pb.LogRequest(request_id=request_id, task=task, offset=offset)
        self._answers[request_id] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(node, {})[request_id] = wanted
        self._controller.orders_event(node).set()
        try:
            return await asyncio.wait_for(self._answers[request_id], ANSWER_S)
        except TimeoutError:
            raise ServiceError(
                f"node {node!r} did not send the log of {task.job_id!r} within {ANSWER_S:g} s; "
                "see `presage cluster ps --nodes`"
            ) from None
        finally:
            del self._asked[node][request_id], self._answers[request_id]
