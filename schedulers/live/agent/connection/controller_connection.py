"""Stream of an agent to its controller, reopened whenever it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc

from presage.errors import ConfigError, PresageError, RefusedAgentError
from presage.schedulers.live.agent.agent import Agent
from presage.schedulers.live.agent.outcome_outbox import Outbox
from presage.schedulers.live.protocol.pieces import merge_commands
from presage.schedulers.live.protocol.wire import MAX_MESSAGE_BYTES
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.v1 import cluster_pb2_grpc as pb_grpc
from presage.serving.authentication.local_token import local_token_finder
from presage.serving.client.credentials import Credentials
from presage.serving.server.log import log

LOG_BYTES = 256 * 1024  # of a log, per message
_FIRST_RETRY_S = 0.2
_OUTCOMES_S = 5.0  # between attempts to report outcomes
_REJECTED = frozenset((grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INVALID_ARGUMENT))
_UNAUTHORIZED = frozenset((grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED))
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 2 * MAX_MESSAGE_BYTES),  # a part of its orders
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)


async def serve_node(agent: Agent, target: str, credentials: Callable[[], Credentials]) -> None:
    """Run an agent and connect it to its controller, until cancelled.

    Parameters
    ----------
    credentials : callable
        Reads the agent's credentials, once per stream. After the first successful connection,
        unreadable credentials and an unknown token are retried: the files may be being replaced.

    Raises
    ------
    RefusedAgentError
        Another agent has the node's name, or the controller rejects this agent's token.
    ConfigError, OSError
        The credentials cannot be read.
    """
    agent.controller_host = _host_of(target)
    await asyncio.to_thread(agent.adopt_tasks)
    working = asyncio.create_task(agent.run())
    reporting = None
    if agent.outbox is not None:
        reporting = asyncio.create_task(_report_outcomes(agent.outbox))
    retry_s = _FIRST_RETRY_S
    try:
        while True:
            received = agent.orders_received
            try:
                own = credentials()
                sent = _with_found_token(own, target)
            except (ConfigError, OSError) as error:
                if not agent.orders_received:
                    raise
                log(logging.WARNING, "credentials cannot be read", error=str(error))
                await asyncio.sleep(agent.heartbeat_s)
                continue
            try:
                await _attach(agent, target, sent, working)
            except grpc.aio.AioRpcError as error:
                fatal = _REJECTED if agent.orders_received else _REJECTED | _UNAUTHORIZED
                is_stale = sent != _with_found_token(own, target)
                if error.code() in fatal and not is_stale:
                    raise RefusedAgentError(error.details()) from error
                log(
                    logging.WARNING,
                    "controller cannot be reached",
                    target=target,
                    error=error.details(),
                )
            has_connected = agent.orders_received > received
            retry_s = _FIRST_RETRY_S if has_connected else min(2 * retry_s, agent.heartbeat_s)
            await asyncio.sleep(retry_s)
    finally:
        working.cancel()
        if reporting is not None:
            reporting.cancel()


def _host_of(target: str) -> str:
    """Return the host in a gRPC target, such as ``dns:///head:7600`` or ``[::1]:7600``."""
    return target.rpartition("/")[2].rpartition(":")[0].strip("[]")


def _with_found_token(own: Credentials, target: str) -> Credentials:
    """Return credentials with the local token of the target, unless they have their own.

    The token is read each time: a controller that restarts creates another one.
    """
    if own.token or own.certificate:
        return own
    return replace(own, token=local_token_finder(target)())


async def _report_outcomes(outbox: Outbox) -> None:
    """Send outcomes, periodically, until they are accepted."""
    while True:
        try:
            sent = await asyncio.to_thread(outbox.send)
            if sent:
                log(logging.INFO, "outcomes reported", outcomes=sent)
        except (PresageError, OSError) as error:
            log(logging.WARNING, "outcomes not reported", error=str(error))
        await asyncio.sleep(_OUTCOMES_S)


async def _attach(
    agent: Agent, target: str, credentials: Credentials, working: asyncio.Task[None]
) -> None:
    """Open one stream and serve it until it ends."""
    channel_credentials = credentials.channel_credentials()
    channel = (
        grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        if channel_credentials is None
        else grpc.aio.secure_channel(target, channel_credentials, options=CHANNEL_OPTIONS)
    )
    async with channel:
        stub: Any = pb_grpc.NodeServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Attach(_reports(agent), metadata=credentials.metadata)
        sending = asyncio.create_task(_send_logs(agent, stub, credentials))
        reading = asyncio.create_task(_receive(agent, call, target))
        try:
            await asyncio.wait((reading, working), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
            await reading
        finally:
            reading.cancel()
            sending.cancel()
            call.cancel()


async def _reports(agent: Agent) -> AsyncIterator[pb.NodeReport]:
    async for report in agent.reports():
        report.supports_chunks = True
        yield report


async def _receive(agent: Agent, call: Any, target: str) -> None:
    before, orders = agent.orders_received, None
    async for piece in call:
        orders = merge_commands(orders, piece)
        if orders.has_more:
            continue
        if agent.orders_received == before:
            log(logging.INFO, "attached", target=target)
        agent.receive(orders)
        orders = None


async def _send_logs(agent: Agent, stub: Any, credentials: Credentials) -> None:
    while True:
        request: pb.LogRequest = await agent.logs.get()
        part = await asyncio.to_thread(agent.log_part, request, LOG_BYTES)
        try:
            await stub.SendLog(part, metadata=credentials.metadata, timeout=10.0)
        except grpc.aio.AioRpcError as error:
            log(logging.WARNING, "log not sent", error=error.details())
