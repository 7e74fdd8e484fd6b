"""Implementation of ``presage.cluster.v1.NodeService``, for node agents."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

import grpc

from presage.errors import ForbiddenError, InvalidRequestError
from presage.schedulers.live.controller.controller import Controller
from presage.schedulers.live.controller.server.cluster_service import parse_request
from presage.schedulers.live.controller.server.job_logs import Logs
from presage.schedulers.live.protocol.pieces import split_commands
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.callers import Caller
from presage.serving.server.call import Call, Calls
from presage.serving.server.log import log

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["NodeService"].full_name
MAX_DEVICES = 1024  # of a node
MAX_SIGNALS = 1024  # of a report
MAX_NAME_LENGTH = 128
ANSWERS_PER_LEASE = 5  # to heartbeats: an answer takes as long as what it answers


class NodeService:
    """Service with one stream per node."""

    def __init__(self, controller: Controller, calls: Calls, logs: Logs) -> None:
        self._controller, self._calls, self._logs = controller, calls, logs
        # Without tokens, the common name of a certificate is the name of its node.
        self._names_nodes = calls.certificates and calls.tokens is None
        self._streams: dict[str, asyncio.Task[None]] = {}

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all methods, for a gRPC server."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Attach": self._calls.stream("Attach", "agent", self.attach),
                "SendLog": self._calls.unary("SendLog", "agent", self.send_log),
            },
        )

    async def attach(
        self, requests: AsyncIterator[bytes], call: Call
    ) -> AsyncGenerator[bytes, None]:
        """Reports come, orders go.

        Raises
        ------
        RefusedAgentError
            Another agent has the node's name.
        ForbiddenError
            The caller is another node, or has fewer devices.
        InvalidRequestError
            A report is none.
        """
        stream = _Stream(self._controller, self._logs, self._node_caller(call))
        first = parse_request(pb.NodeReport, await anext(requests, b""))
        await stream.receive(first)
        log(logging.INFO, "node attached", node=first.node, devices=len(first.devices))
        before = self._streams.get(first.node)
        if before is not None:
            before.cancel()
        reading = self._streams[first.node] = asyncio.create_task(stream.read(requests))
        try:
            async for commands in stream.commands(reading):
                # Without support for chunks, each message must contain all commands.
                chunks = split_commands(commands) if first.supports_chunks else (commands,)
                for chunk in chunks:
                    yield chunk.SerializeToString()
        finally:
            reading.cancel()
            if self._streams.get(first.node) is reading:
                del self._streams[first.node]
            log(logging.INFO, "node detached", node=first.node)

    async def send_log(self, content: bytes, call: Call) -> bytes:
        """Receive a part of a log."""
        self._logs.receive(parse_request(pb.LogPart, content), self._node_caller(call).node)
        return pb.SendLogResponse().SerializeToString()

    def _node_caller(self, call: Call) -> Caller:
        """Return the caller with the only node that it may attach as; "" for any."""
        caller = call.caller
        return replace(caller, node=caller.name) if self._names_nodes else caller


class _Stream:
    """Stream of one agent; a message of commands may acknowledge several reports."""

    def __init__(self, controller: Controller, logs: Logs, caller: Caller) -> None:
        self._controller, self._logs, self._caller = controller, logs, caller
        self._node = ""
        self._report_number = self._version = 0
        self._answered_s = -math.inf
        self._last: pb.NodeReport | None = None  # whole report
        self._error: BaseException | None = None

    async def receive(self, report: pb.NodeReport) -> None:
        """Process a report, or a heartbeat that repeats the last one."""
        if report.unchanged and self._last is not None:
            is_renewed = await self._controller.repeat(self._last, self._caller.name)
        else:
            _check_report(report)
            _check_node(self._caller, report)
            self._node = self._node or report.node
            if report.node != self._node:
                raise InvalidRequestError(f"node {report.node!r} on the stream of {self._node!r}")
            self._last = report
            is_renewed = await self._controller.report(report, self._caller.name)
        if is_renewed:
            self._report_number = report.number
        lease_s = self._controller.core.lease_s
        if report.unchanged and time.monotonic() < self._answered_s + lease_s / ANSWERS_PER_LEASE:
            return
        self._controller.commands_event(self._node).set()

    async def read(self, requests: AsyncIterator[bytes]) -> None:
        """Process reports until the agent closes the stream."""
        try:
            async for content in requests:
                await self.receive(parse_request(pb.NodeReport, content))
        except Exception as error:
            self._error = error
        finally:
            self._controller.commands_event(self._node).set()

    async def commands(self, reading: asyncio.Task[None]) -> AsyncGenerator[pb.NodeCommands, None]:
        """Yield commands when they change, and acknowledgements of reports."""
        event = self._controller.commands_event(self._node)
        event.set()
        acknowledged = -1
        sent_requests: set[str] = set()
        while not reading.done():
            await event.wait()
            event.clear()
            if not self._report_number:  # its lease must start with commands of this controller
                continue
            version, pace = await self._controller.read(
                lambda core, _: (core.commands_version(self._node), core.pace())
            )
            pending = self._logs.requests(self._node)
            new = [request for request in pending if request.request_id not in sent_requests]
            if version == self._version:
                if acknowledged == self._report_number and not new:
                    continue
                commands = pb.NodeCommands(version=self._version, unchanged=True)
            else:
                commands = await self._controller.read(lambda core, _: core.commands(self._node))
                if self._controller.sharing is not None:
                    commands.sharing.CopyFrom(self._controller.sharing)
            commands.heartbeat_s, commands.report_s = pace
            self._answered_s = time.monotonic()
            self._version, acknowledged = commands.version, self._report_number
            commands.report_number = acknowledged
            commands.log_requests.extend(new)
            sent_requests = {request.request_id for request in pending}
            yield commands
        if self._error is not None:
            raise self._error


def _check_node(caller: Caller, report: pb.NodeReport) -> None:
    """Raise ForbiddenError unless a caller may attach as the node, with its devices."""
    if not caller.node:  # the local token of the controller's user
        return
    if report.node != caller.node:
        raise ForbiddenError(
            f"{caller.name!r} may attach as node {caller.node!r}, not {report.node!r}; set the "
            "agent's --node to that name, or give it another token"
        )
    if not caller.devices:  # a certificate names no devices
        return
    declared, allowed = Counter(one.kind for one in report.devices), dict(caller.devices)
    for kind, count in declared.items():
        if count > allowed.get(kind, 0):
            raise ForbiddenError(
                f"node {report.node!r} declares {count} devices of kind {kind!r}, and its token "
                f"allows {allowed.get(kind, 0)}; if that is correct, set devices={kind}:{count} in "
                "its line of the token file"
            )


def _check_report(report: pb.NodeReport) -> None:
    """Raise InvalidRequestError unless a report is valid."""
    if not 0 < len(report.node) <= MAX_NAME_LENGTH or not report.agent_id:
        raise InvalidRequestError(
            f"report of node {report.node!r}: the name must have 1 to {MAX_NAME_LENGTH} "
            "characters, and agent_id must not be empty"
        )
    if not 0 < len(report.devices) <= MAX_DEVICES:
        raise InvalidRequestError(
            f"node {report.node!r}: {len(report.devices)} devices, must be 1 to {MAX_DEVICES}"
        )
    if any(not one.kind or one.memory_bytes < 1 for one in report.devices):
        raise InvalidRequestError(f"node {report.node!r}: a device has no kind or no memory")
    if len(report.signals) > MAX_SIGNALS or len(report.signals_id) > MAX_NAME_LENGTH:
        raise InvalidRequestError(
            f"node {report.node!r}: {len(report.signals)} signals, must be <= {MAX_SIGNALS}, and "
            f"signals_id must have at most {MAX_NAME_LENGTH} characters"
        )
