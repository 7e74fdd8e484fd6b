"""Implementation of ``presage.cluster.v1.ClusterService``, for users and operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from itertools import islice
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from presage.errors import InvalidRequestError, OverloadedError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.live.controller.controller import Controller
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.devices.node_availability import MAX_REASON_LENGTH
from presage.schedulers.live.controller.explanations.event_sentences import make_event
from presage.schedulers.live.controller.explanations.explain import (
    find_candidates,
    queue_position,
    queue_positions,
    summarize_job,
)
from presage.schedulers.live.controller.history.history_file import HistoryFile
from presage.schedulers.live.controller.journal.journal import Entry, Journal
from presage.schedulers.live.controller.journal.records import Record, record_from_json
from presage.schedulers.live.controller.operations.job_changes import (
    change_priority,
    hold_jobs,
    requeue_jobs,
)
from presage.schedulers.live.controller.operations.quotas import quota_records, quotas_response
from presage.schedulers.live.controller.ownership import check_owner, owns, sees_details
from presage.schedulers.live.controller.replayed_state import ENDED, LiveJob, ReplayedState, Stage
from presage.schedulers.live.controller.server.history_calls import answer_history
from presage.schedulers.live.controller.server.job_filter import check_states, select_jobs
from presage.schedulers.live.controller.server.job_logs import Logs
from presage.schedulers.live.controller.server.outage_messages import outages_response
from presage.schedulers.live.controller.status_messages import (
    job_status,
    node_status,
    redact_status,
)
from presage.schedulers.live.controller.what_if.questions import Questions
from presage.schedulers.live.protocol.submitted_job import MAX_NAME_LENGTH
from presage.schedulers.live.protocol.wire import MAX_JOB_BYTES, MAX_JOBS, read_job
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.client.trace_context import current_traceparent
from presage.serving.server.call import Call, Calls

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["ClusterService"].full_name
MAX_JOBS_KNOWN = 1_000_000
MAX_HISTORY = 100
MAX_LISTED = 20_000
MAX_FAILED = 100
PAGE = 1_000  # entries per read; equal to the journal's page, else it reads entries twice


class ClusterService:
    """Service that converts between messages and calls of the controller."""

    def __init__(
        self,
        controller: Controller,
        calls: Calls,
        logs: Logs,
        policy: str,
        history: HistoryFile | None = None,
    ) -> None:
        self._controller, self._calls, self._logs = controller, calls, logs
        self._policy, self._history = policy, history
        self._questions = Questions(controller, policy)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all methods, for a gRPC server."""
        unary, stream = self._calls.unary, self._calls.stream
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Submit": unary("Submit", "submit", self.submit),
                # Methods with the role view check the owner of each job.
                "Cancel": unary("Cancel", "view", self.cancel),
                "Hold": unary("Hold", "view", self.hold),
                "Requeue": unary("Requeue", "view", self.requeue),
                "SetPriority": unary("SetPriority", "view", self.set_priority),
                "List": unary("List", "view", self.list),
                "Watch": stream("Watch", "view", self.watch),
                "Drain": unary("Drain", "admin", self.drain),
                "Outages": unary("Outages", "view", self.outages),
                "SetQuota": unary("SetQuota", "admin", self.set_quota),
                "Quotas": unary("Quotas", "view", self.quotas),
                "History": unary("History", "view", self.history),
                "Explain": unary("Explain", "view", self.explain),
                "WhatIf": unary("WhatIf", "view", self.what_if),
                "Logs": stream("Logs", "view", self.logs),
            },
        )

    async def submit(self, content: bytes, call: Call) -> bytes:
        """Submit jobs in the name of the client."""
        request = parse_request(pb.SubmitRequest, content)
        if not 0 < len(request.jobs) <= MAX_JOBS:
            raise InvalidRequestError(
                f"jobs has {len(request.jobs)} entries, must have 1 to {MAX_JOBS}; split it"
            )
        for row in request.jobs:
            row.user = call.caller.name
            _check_size(row)
        traceparent = "" if self._controller.spans is None else current_traceparent()

        def submit(core: Core, now_s: float, now_unix_s: float) -> tuple[list[Record], list[str]]:
            if len(core.state.jobs) + len(request.jobs) > MAX_JOBS_KNOWN:
                raise OverloadedError(
                    f"the controller has {len(core.state.jobs)} jobs, the maximum is "
                    f"{MAX_JOBS_KNOWN:,}; retry when jobs have ended, or reduce --keep-ended"
                )
            jobs = [read_job(row, now_s, f"jobs[{i}]") for i, row in enumerate(request.jobs)]
            return core.submit(jobs, now_s, now_unix_s, call.caller, traceparent)

        known = await self._controller.change(submit, call.caller.name)
        return pb.SubmitResponse(existing_job_ids=known).SerializeToString()

    async def cancel(self, content: bytes, call: Call) -> bytes:
        """Cancel jobs."""
        request = parse_request(pb.CancelRequest, content)

        def cancel(core: Core, now_s: float, now_unix_s: float) -> tuple[list[Record], list[str]]:
            names = list(request.job_ids)
            if request.user or request.all:
                names += core.cancellable(request.user, call.caller)
            records = core.cancel(names, now_s, now_unix_s, call.caller)
            return records, [getattr(record, "job_id", "") for record in records]

        cancelled = await self._controller.change(cancel, call.caller.name)
        return pb.CancelResponse(job_ids=cancelled).SerializeToString()

    async def hold(self, content: bytes, call: Call) -> bytes:
        """Hold or release jobs."""
        request = parse_request(pb.HoldRequest, content)

        def hold(core: Core, now_s: float, _: float) -> tuple[list[Record], None]:
            names, release = request.job_ids, request.release
            return hold_jobs(core.state, names, now_s, call.caller, release=release), None

        await self._controller.change(hold, call.caller.name)
        return pb.HoldResponse().SerializeToString()

    async def requeue(self, content: bytes, call: Call) -> bytes:
        """Return running jobs to the queue."""
        request = parse_request(pb.RequeueRequest, content)

        def requeue(core: Core, now_s: float, _: float) -> tuple[list[Record], None]:
            return requeue_jobs(core.state, request.job_ids, now_s, call.caller), None

        await self._controller.change(requeue, call.caller.name)
        return pb.RequeueResponse().SerializeToString()

    async def set_priority(self, content: bytes, call: Call) -> bytes:
        """Set the priority of jobs."""
        request = parse_request(pb.SetPriorityRequest, content)

        def change(core: Core, now_s: float, _: float) -> tuple[list[Record], None]:
            names, priority = request.job_ids, request.priority
            return change_priority(core.state, names, priority, now_s, call.caller), None

        await self._controller.change(change, call.caller.name)
        return pb.SetPriorityResponse().SerializeToString()

    async def list(self, content: bytes, call: Call) -> bytes:
        """List jobs and nodes; the public part only for jobs of other users."""
        request = parse_request(pb.ListRequest, content)
        check_states(request.states)
        sees_problems = call.caller.is_admin or "submit" in call.caller.roles

        def row(core: Core, job: LiveJob, now_s: float, position: int = 0) -> pb.JobStatus:
            status = job_status(core, job, now_s, position)
            return status if owns(call.caller, job) else redact_status(status)

        def respond(core: Core, now_s: float) -> pb.ListResponse:
            positions = queue_positions(core.view(now_s))
            jobs = [core.job(job_id) for job_id in request.job_ids] or sort_jobs(
                core.state, positions, with_ended=request.include_ended
            )
            jobs = select_jobs(core, jobs, request)
            limit = request.limit if request.limit > 0 else MAX_LISTED
            skipped = jobs[: max(0, request.offset)]
            listed = jobs[len(skipped) : len(skipped) + limit]
            return pb.ListResponse(
                jobs=[row(core, job, now_s, positions.get(job.job_id, 0)) for job in listed],
                remaining_job_count=len(jobs) - len(skipped) - len(listed),
                failed_jobs=[
                    row(core, job, now_s)
                    for job in recent_failures(core.state, now_s, request.failed_within_s)
                ],
                nodes=[
                    node_status(core, name, now_s, full=sees_problems) for name in core.state.nodes
                ],
                policy=self._policy,
                forecaster_error=self._controller.forecasts.failure,
                last_entry=self._controller.journal.last_seq,
                client=call.caller.name,
                client_roles=sorted(call.caller.roles),
            )

        return (await self._controller.read_in_thread(respond)).SerializeToString()

    async def watch(
        self, requests: AsyncIterator[bytes], call: Call
    ) -> AsyncGenerator[bytes, None]:
        """Stream events."""
        request = parse_request(pb.WatchRequest, await anext(requests, b""))
        journal = self._controller.journal
        seq = request.after_entry if request.after_entry >= 0 else journal.last_seq
        job_ids = frozenset(request.job_ids)
        while True:
            if journal.last_seq <= seq:
                await self._controller.wait_for_entry_after(seq)
            for entry in await asyncio.to_thread(_page, journal, seq):
                seq = entry.seq
                if not job_ids or entry.record.get("job_id") in job_ids:
                    yield self._event(entry, call).SerializeToString()

    async def drain(self, content: bytes, call: Call) -> bytes:
        """Start or stop draining a node or a device."""
        request = parse_request(pb.DrainRequest, content)
        if len(request.reason) > MAX_REASON_LENGTH or not request.reason.isprintable():
            raise InvalidRequestError(
                f"reason: must have at most {MAX_REASON_LENGTH} printable characters; shorten it"
            )

        def drain(core: Core, now_s: float, _: float) -> tuple[list[Record], list[str]]:
            records = core.drain(
                request.node,
                undo=request.undo,
                evict=request.evict,
                now_s=now_s,
                by=call.caller.name,
                reason=request.reason,
            )
            return records, core.jobs_at(request.node)

        remaining = await self._controller.change(drain, call.caller.name)
        return pb.DrainResponse(job_ids=remaining).SerializeToString()

    async def outages(self, content: bytes, call: Call) -> bytes:
        """Return the outages of devices."""
        parse_request(pb.OutagesRequest, content)
        found = await self._controller.read_in_thread(
            lambda core, now_s: outages_response(core.state, now_s)
        )
        return found.SerializeToString()

    async def set_quota(self, content: bytes, call: Call) -> bytes:
        """Set or remove a quota."""
        request = parse_request(pb.SetQuotaRequest, content)

        def change(core: Core, now_s: float, _: float) -> tuple[list[Record], int]:
            users = core.state.users
            held_milli = users.use.held_milli(request.quota.user) if request.quota.user else 0
            return quota_records(users, request, now_s), held_milli

        held_milli = await self._controller.change(change, call.caller.name)
        held_devices = held_milli / FULL_DEVICE_MILLI
        return pb.SetQuotaResponse(held_devices=held_devices).SerializeToString()

    async def quotas(self, content: bytes, call: Call) -> bytes:
        """Return the quotas of users."""
        parse_request(pb.QuotasRequest, content)

        def respond(core: Core, now_s: float) -> pb.QuotasResponse:
            is_fair = core.policy.needs.fair_share_s > 0
            return quotas_response(core.state.users, now_s, is_fair=is_fair)

        return (await self._controller.read(respond)).SerializeToString()

    async def history(self, content: bytes, call: Call) -> bytes:
        """Return samples of the cluster's state; errors of forecasts for administrators only."""
        request = parse_request(pb.HistoryRequest, content)
        found = await answer_history(request, self._history, sees_errors=call.caller.is_admin)
        return found.SerializeToString()

    async def explain(self, content: bytes, call: Call) -> bytes:
        """Explain the state of a job."""
        request = parse_request(pb.ExplainRequest, content)

        def respond(core: Core, now_s: float) -> pb.Explanation:
            job = core.job(request.job_id)
            check_owner(call.caller, job)
            view = core.view(now_s)
            position = queue_position(view, job.job_id)
            status = job_status(core, job, now_s, position, full=True)
            if (
                view is not None and job.stage is Stage.WAITING
            ):  # current, not of its last placement
                status.ClearField("predictions")
                status.predictions.extend(view.predictions(job.submitted.job))
            return pb.Explanation(
                status=status,
                summary=summarize_job(core, job, position, now_s),
                candidates=[] if job.stage in ENDED else find_candidates(core, job, now_s),
            )

        found = await self._controller.read_in_thread(respond)
        journal = self._controller.journal
        entries = await asyncio.to_thread(journal.job_entries, request.job_id, MAX_HISTORY)
        history = (self._event(entry, call) for entry in entries if self._sees(entry, call))
        found.history.extend(history)
        return found.SerializeToString()

    async def what_if(self, content: bytes, call: Call) -> bytes:
        """Predict when jobs start and end."""
        request = parse_request(pb.WhatIfRequest, content)
        if request.HasField("new_job"):
            request.new_job.user = call.caller.name
            _check_size(request.new_job)
        return (await self._questions.answer(request, call.caller)).SerializeToString()

    async def logs(self, requests: AsyncIterator[bytes], call: Call) -> AsyncGenerator[bytes, None]:
        """Stream the output of a job."""
        request = parse_request(pb.LogsRequest, await anext(requests, b""))
        async for content in self._logs.stream(request, lambda job: check_owner(call.caller, job)):
            yield pb.LogChunk(content=content).SerializeToString()

    def _event(self, entry: Entry, call: Call) -> pb.Event:
        """Return the event of an entry, as the client may see it."""
        return make_event(entry, has_details=self._sees(entry, call))

    def _sees(self, entry: Entry, call: Call) -> bool:
        if call.caller.is_admin:
            return True
        record = record_from_json(entry.record)
        job = self._controller.core.state.jobs.get(getattr(record, "job_id", ""))
        return sees_details(call.caller, job, record)


def _check_size(row: pb.Job) -> None:
    if row.ByteSize() > MAX_JOB_BYTES:
        raise InvalidRequestError(
            f"job {row.job_id[:MAX_NAME_LENGTH]!r} has {row.ByteSize()} bytes with its command, "
            f"environment and features, the maximum is {MAX_JOB_BYTES}; move large values to "
            "files that the job reads"
        )


def _page(journal: Journal, after: int) -> list[Entry]:
    return list(islice(journal.read(after), PAGE))


def sort_jobs(
    state: ReplayedState, positions: Mapping[str, int], *, with_ended: bool
) -> list[LiveJob]:
    """Return jobs on nodes, then waiting jobs in queue order, then ended jobs, newest first."""
    at_node = {job.job_id: job for here in state.at_node.values() for job in here.values()}
    jobs = list(at_node.values())  # an elastic job is at several nodes
    waiting = [job for job in state.jobs.values() if job.stage is Stage.WAITING]
    jobs += sorted(
        waiting, key=lambda job: (positions.get(job.job_id, len(waiting) + 1), job.number)
    )
    return jobs + [state.jobs[job_id] for job_id in reversed(state.ended)] if with_ended else jobs


def recent_failures(state: ReplayedState, now_s: float, seconds: float) -> list[LiveJob]:
    """Return the jobs that failed within a time, newest first, among the last ended jobs."""
    if not seconds > 0:
        return []
    last = (state.jobs[job_id] for job_id in islice(reversed(state.ended), MAX_LISTED))
    failed = (job for job in last if job.stage is Stage.FAILED and now_s - job.since_s <= seconds)
    return list(islice(failed, MAX_FAILED))


def parse_request(kind: Any, content: bytes) -> Any:
    """Return the message of a request.

    Raises
    ------
    InvalidRequestError
        The bytes are none.
    """
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise InvalidRequestError(f"no {kind.DESCRIPTOR.name}: {error}") from None
