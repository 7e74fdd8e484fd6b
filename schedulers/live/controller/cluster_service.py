"""``presage.cluster.v1.ClusterService``: what users and operators may ask of the controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from itertools import islice
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from presage.errors import InvalidRequestError, OverloadedError
from presage.schedulers.live.controller.controller import Controller
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.explanations.event_sentences import event_of
from presage.schedulers.live.controller.explanations.explain import (
    candidates_of,
    place_of,
    queue_places,
    sentence_of,
)
from presage.schedulers.live.controller.job_logs import Logs
from presage.schedulers.live.controller.journal.journal import Entry, Journal
from presage.schedulers.live.controller.journal.records import Record, of_json
from presage.schedulers.live.controller.ownership import check_owner, owns, sees_details
from presage.schedulers.live.controller.replayed_state import OVER, LiveJob, ReplayedState, Stage
from presage.schedulers.live.controller.status_messages import node_status, public_part, status_of
from presage.schedulers.live.protocol.submitted_job import MAX_NAME_LENGTH
from presage.schedulers.live.protocol.wire import MAX_JOB_BYTES, MAX_JOBS, read_job
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.server.call import Call, Calls

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["ClusterService"].full_name
MOST_KNOWN = 1_000_000
MOST_HISTORY = 100
MOST_LISTED = 20_000
MOST_FAILED = 100
PAGE = 1_000  # entries that are read at once: as many as the journal reads, or it reads some again


class ClusterService:
    """Translates between messages and the controller."""

    def __init__(self, controller: Controller, calls: Calls, logs: Logs, policy: str) -> None:
        self._controller, self._calls, self._logs = controller, calls, logs
        self._policy = policy

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server needs to answer. A call with one request is a stream of one."""
        unary, stream = self._calls.unary, self._calls.stream
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Submit": unary("Submit", "submit", self.submit),
                # Those with view are for owners and administrators: each method checks which job.
                "Cancel": unary("Cancel", "view", self.cancel),
                "List": unary("List", "view", self.list),
                "Watch": stream("Watch", "view", self.watch),
                "Drain": unary("Drain", "admin", self.drain),
                "Explain": unary("Explain", "view", self.explain),
                "Logs": stream("Logs", "view", self.logs),
            },
        )

    async def submit(self, content: bytes, call: Call) -> bytes:
        """Take jobs in, in the caller's name."""
        request = parsed(pb.SubmitRequest, content)
        if not 0 < len(request.jobs) <= MAX_JOBS:
            raise InvalidRequestError(f"jobs: 1 to {MAX_JOBS} at once, not {len(request.jobs)}")
        for row in request.jobs:
            row.user = call.caller.name
            _check_size(row)

        def take(core: Core, now_s: float, now_unix_s: float) -> tuple[list[Record], list[str]]:
            if len(core.book.jobs) + len(request.jobs) > MOST_KNOWN:
                raise OverloadedError(
                    f"{len(core.book.jobs)} jobs are known, and at most {MOST_KNOWN:,} may be; "
                    "submit more when some are over, or keep fewer of these (--keep-ended)"
                )
            jobs = [read_job(row, now_s, f"jobs[{i}]") for i, row in enumerate(request.jobs)]
            return core.submit(jobs, now_s, now_unix_s, call.caller)

        known = await self._controller.change(take, call.caller.name)
        return pb.SubmitResponse(existing_job_ids=known).SerializeToString()

    async def cancel(self, content: bytes, call: Call) -> bytes:
        """End jobs for good."""
        request = parsed(pb.CancelRequest, content)

        def end(core: Core, now_s: float, now_unix_s: float) -> tuple[list[Record], None]:
            return core.cancel(request.job_ids, now_s, now_unix_s, call.caller), None

        await self._controller.change(end, call.caller.name)
        return pb.CancelResponse().SerializeToString()

    async def list(self, content: bytes, call: Call) -> bytes:
        """Jobs and nodes; of others' jobs the public part."""
        request = parsed(pb.ListRequest, content)
        sees_problems = call.caller.is_admin or "submit" in call.caller.roles

        def row(core: Core, job: LiveJob, now_s: float, place: int = 0) -> pb.JobStatus:
            status = status_of(core, job, now_s, place)
            return status if owns(call.caller, job) else public_part(status)

        def seen(core: Core, now_s: float) -> pb.ListResponse:
            places = queue_places(core.view(now_s))
            jobs = [core.job(job_id) for job_id in request.job_ids] or in_order(
                core.book, places, ended=request.include_ended
            )
            listed = jobs[: request.limit if request.limit > 0 else MOST_LISTED]
            return pb.ListResponse(
                jobs=[row(core, job, now_s, places.get(job.job_id, 0)) for job in listed],
                remaining_job_count=len(jobs) - len(listed),
                failed_jobs=[
                    row(core, job, now_s)
                    for job in failed_within(core.book, now_s, request.failed_within_s)
                ],
                nodes=[
                    node_status(core, name, now_s, whole=sees_problems) for name in core.book.nodes
                ],
                policy=self._policy,
                forecaster_error=self._controller.forecasts.failure,
                last_entry=self._controller.journal.last_seq,
            )

        return (await self._controller.survey(seen)).SerializeToString()

    async def watch(
        self, requests: AsyncIterator[bytes], call: Call
    ) -> AsyncGenerator[bytes, None]:
        """What happens."""
        request = parsed(pb.WatchRequest, await anext(requests, b""))
        journal = self._controller.journal
        seq = request.after_entry if request.after_entry >= 0 else journal.last_seq
        wanted = frozenset(request.job_ids)
        while True:
            if journal.last_seq <= seq:
                await self._controller.entries_after(seq)
            for entry in await asyncio.to_thread(_page, journal, seq):
                seq = entry.seq
                if not wanted or entry.record.get("job_id") in wanted:
                    yield self._event(entry, call).SerializeToString()

    async def drain(self, content: bytes, call: Call) -> bytes:
        """No new jobs for a node, or some again."""
        request = parsed(pb.DrainRequest, content)

        def drained(core: Core, now_s: float, _: float) -> tuple[list[Record], list[str]]:
            records = core.drain(request.node, undo=request.undo, evict=request.evict, now_s=now_s)
            return records, list(core.book.at_node.get(request.node, {}))

        there = await self._controller.change(drained, call.caller.name)
        return pb.DrainResponse(job_ids=there).SerializeToString()

    async def explain(self, content: bytes, call: Call) -> bytes:
        """Why a job is where it is."""
        request = parsed(pb.ExplainRequest, content)

        def explained(core: Core, now_s: float) -> pb.Explanation:
            job = core.job(request.job_id)
            check_owner(call.caller, job)
            view = core.view(now_s)
            place = place_of(view, job.job_id)
            status = status_of(core, job, now_s, place, whole=True)
            if view is not None and job.stage is Stage.WAITING:  # not what it was told before
                status.ClearField("predictions")
                status.predictions.extend(view.told_of(job.submitted.job))
            return pb.Explanation(
                status=status,
                summary=sentence_of(core, job, place, now_s),
                candidates=[] if job.stage in OVER else candidates_of(core, job, now_s),
            )

        found = await self._controller.survey(explained)
        journal = self._controller.journal
        entries = await asyncio.to_thread(journal.of_job, request.job_id, MOST_HISTORY)
        history = (self._event(entry, call) for entry in entries if self._sees(entry, call))
        found.history.extend(history)
        return found.SerializeToString()

    async def logs(self, requests: AsyncIterator[bytes], call: Call) -> AsyncGenerator[bytes, None]:
        """What a job wrote."""
        request = parsed(pb.LogsRequest, await anext(requests, b""))
        async for content in self._logs.of_job(request, lambda job: check_owner(call.caller, job)):
            yield pb.LogChunk(content=content).SerializeToString()

    def _event(self, entry: Entry, call: Call) -> pb.Event:
        """Return an entry as its caller may see it."""
        return event_of(entry, is_whole=self._sees(entry, call))

    def _sees(self, entry: Entry, call: Call) -> bool:
        if call.caller.is_admin:
            return True
        record = of_json(entry.record)
        job = self._controller.core.book.jobs.get(getattr(record, "job_id", ""))
        return sees_details(call.caller, job, record)


def _check_size(row: pb.Job) -> None:
    if row.ByteSize() > MAX_JOB_BYTES:
        raise InvalidRequestError(
            f"job {row.job_id[:MAX_NAME_LENGTH]!r} has {row.ByteSize()} bytes with its command, "
            f"environment and features, at most {MAX_JOB_BYTES} are taken; put what is large "
            "into files that it reads"
        )


def _page(journal: Journal, after: int) -> list[Entry]:
    return list(islice(journal.read(after), PAGE))


def in_order(book: ReplayedState, places: Mapping[str, int], *, ended: bool) -> list[LiveJob]:
    """Jobs at nodes, those that wait in the order of the queue, and those that ended last."""
    jobs = [job for there in book.at_node.values() for job in there.values()]
    waiting = [job for job in book.jobs.values() if job.stage is Stage.WAITING]
    jobs += sorted(waiting, key=lambda job: (places.get(job.job_id, len(waiting) + 1), job.number))
    return jobs + [book.jobs[job_id] for job_id in reversed(book.over)] if ended else jobs


def failed_within(book: ReplayedState, now_s: float, seconds: float) -> list[LiveJob]:
    """Jobs that failed of late, the last first; of none that is long over, where many are kept."""
    if not seconds > 0:
        return []
    last = (book.jobs[job_id] for job_id in islice(reversed(book.over), MOST_LISTED))
    failed = (job for job in last if job.stage is Stage.FAILED and now_s - job.since_s <= seconds)
    return list(islice(failed, MOST_FAILED))


def parsed(kind: Any, content: bytes) -> Any:
    """A message of a kind.

    Raises
    ------
    InvalidRequestError
        The bytes are none.
    """
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise InvalidRequestError(f"no {kind.DESCRIPTOR.name}: {error}") from None
