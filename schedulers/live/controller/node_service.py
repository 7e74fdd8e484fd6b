"""``presage.cluster.v1.NodeService``: what agents tell the controller, and are told."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

import grpc

from presage.errors import ForbiddenError, InvalidRequestError
from presage.schedulers.live.controller.cluster_service import parsed
from presage.schedulers.live.controller.controller import Controller
from presage.schedulers.live.controller.job_logs import Logs
from presage.schedulers.live.protocol.pieces import split_orders
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.callers import Caller
from presage.serving.server.call import Call, Calls
from presage.serving.server.log import log

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["NodeService"].full_name
MOST_DEVICES = 1024  # of a node
MAX_NAME_LENGTH = 128


class NodeService:
    """Streams of agents; of each node one."""

    def __init__(self, controller: Controller, calls: Calls, logs: Logs) -> None:
        self._controller, self._calls, self._logs = controller, calls, logs
        # Without tokens a certificate's common name is its node's.
        self._names_nodes = calls.certificates and calls.tokens is None
        self._streams: dict[str, asyncio.Task[None]] = {}

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server needs to answer."""
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
        first = _checked(parsed(pb.NodeReport, await anext(requests, b"")))
        await stream.take(first)
        log(logging.INFO, "node attached", node=first.node, devices=len(first.devices))
        before = self._streams.get(first.node)
        if before is not None:
            before.cancel()
        reading = self._streams[first.node] = asyncio.create_task(stream.read(requests))
        try:
            async for orders in stream.orders(reading):
                # An agent of an earlier version takes each message for all of its orders.
                pieces = split_orders(orders) if first.supports_chunks else (orders,)
                for piece in pieces:
                    yield piece.SerializeToString()
        finally:
            reading.cancel()
            if self._streams.get(first.node) is reading:
                del self._streams[first.node]
            log(logging.INFO, "node detached", node=first.node)

    async def send_log(self, content: bytes, call: Call) -> bytes:
        """A part of a log."""
        self._logs.answer(parsed(pb.LogPart, content), self._node_caller(call).node)
        return pb.SendLogResponse().SerializeToString()

    def _node_caller(self, call: Call) -> Caller:
        """Return the caller with the only node that it may be; "" where it may be any."""
        caller = call.caller
        return replace(caller, node=caller.name) if self._names_nodes else caller


class _Stream:
    """One agent's: its reports are answered together where they come faster than orders go."""

    def __init__(self, controller: Controller, logs: Logs, caller: Caller) -> None:
        self._controller, self._logs, self._caller = controller, logs, caller
        self._node = ""
        self._answers = self._version = 0
        self._error: BaseException | None = None

    async def take(self, report: pb.NodeReport) -> None:
        """A report."""
        _check_node(self._caller, report)
        self._node = self._node or report.node
        if report.node != self._node:
            raise InvalidRequestError(f"node {report.node!r} on the stream of {self._node!r}")
        if await self._controller.report(report, self._caller.name):
            self._answers = report.number
        self._controller.orders_event(self._node).set()

    async def read(self, requests: AsyncIterator[bytes]) -> None:
        """All reports, until the agent goes."""
        try:
            async for content in requests:
                await self.take(_checked(parsed(pb.NodeReport, content)))
        except Exception as error:
            self._error = error
        finally:
            self._controller.orders_event(self._node).set()

    async def orders(self, reading: asyncio.Task[None]) -> AsyncGenerator[pb.NodeCommands, None]:
        """Whenever there is something to say."""
        event = self._controller.orders_event(self._node)
        event.set()
        answered = -1
        asked: set[str] = set()
        while not reading.done():
            await event.wait()
            event.clear()
            if not self._answers:  # its lease begins with its orders, or it would go by another one
                continue
            orders = await self._controller.look(lambda core, _: core.orders(self._node))
            logs = [one for one in self._logs.wanted(self._node) if one.request_id not in asked]
            if orders.version == self._version:
                if answered == self._answers and not logs:
                    continue
                orders = pb.NodeCommands(version=self._version, unchanged=True)
            elif self._controller.sharing is not None:
                orders.sharing.CopyFrom(self._controller.sharing)
            self._version, answered = orders.version, self._answers
            orders.report_number = answered
            orders.log_requests.extend(logs)
            asked = {one.request_id for one in self._logs.wanted(self._node)}
            yield orders
        if self._error is not None:
            raise self._error


def _check_node(caller: Caller, report: pb.NodeReport) -> None:
    """Raise ForbiddenError unless a caller may be that node, with those devices."""
    if not caller.node:  # the token of the user that started the controller
        return
    if report.node != caller.node:
        raise ForbiddenError(
            f"{caller.name!r} may be node {caller.node!r}, not {report.node!r}; give the agent "
            "--node with that name, or a token of its own"
        )
    if not caller.devices:  # a certificate, which names none
        return
    declared, allowed = Counter(one.kind for one in report.devices), dict(caller.devices)
    for kind, count in declared.items():
        if count > allowed.get(kind, 0):
            raise ForbiddenError(
                f"node {report.node!r} declares {count} devices of kind {kind!r}, and its token "
                f"allows {allowed.get(kind, 0)}; write devices={kind}:{count} into its line of the "
                "token file if that is right"
            )


def _checked(report: pb.NodeReport) -> pb.NodeReport:
    if not 0 < len(report.node) <= MAX_NAME_LENGTH or not report.agent_id:
        raise InvalidRequestError(f"a report of no node: name {report.node!r}")
    if not 0 < len(report.devices) <= MOST_DEVICES:
        raise InvalidRequestError(
            f"node {report.node!r}: {len(report.devices)} devices, must be 1 to {MOST_DEVICES}"
        )
    if any(not one.kind or one.memory_bytes < 1 for one in report.devices):
        raise InvalidRequestError(f"node {report.node!r}: a device without a kind or memory")
    return report
