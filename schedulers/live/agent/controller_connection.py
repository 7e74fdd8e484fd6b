"""An agent's stream to its controller: opened again whenever it breaks."""

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
from presage.schedulers.live.protocol.pieces import whole_orders
from presage.schedulers.live.protocol.wire import MOST_MESSAGE_BYTES
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.v1 import cluster_pb2_grpc as pb_grpc
from presage.serving.authentication.local_token import local_token_finder
from presage.serving.client.credentials import Credentials
from presage.serving.server.log import log

LOG_BYTES = 256 * 1024  # of a log, at once
_FIRST_RETRY_S = 0.2
_TELL_S = 5.0  # from one try to tell outcomes to the next
_REFUSED = frozenset((grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INVALID_ARGUMENT))
_NOT_LET_IN = frozenset((grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED))
_OPTIONS = (
    ("grpc.max_receive_message_length", 2 * MOST_MESSAGE_BYTES),  # a piece of its orders
    ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)


async def serve_node(agent: Agent, target: str, credentials: Callable[[], Credentials]) -> None:
    """Keep an agent's node as its controller wants it, until cancelled.

    Parameters
    ----------
    credentials : callable
        Reads what is shown to the controller, for each stream anew. One that was let in before is
        not sent away for what it reads or for a token that is not known: somebody may be changing
        these files.

    Raises
    ------
    RefusedAgentError
        Another agent has the node's name, or this one's token is not let in.
    ConfigError, OSError
        Its credentials cannot be read.
    """
    await asyncio.to_thread(agent.begin)
    working = asyncio.create_task(agent.run())
    telling = None if agent.outbox is None else asyncio.create_task(_tell(agent.outbox))
    retry_s = _FIRST_RETRY_S
    try:
        while True:
            heard = agent.heard
            try:
                given = credentials()
                shown = _with_found_token(given, target)
            except (ConfigError, OSError) as error:
                if not agent.heard:
                    raise
                log(logging.WARNING, "no credentials", error=str(error))
                await asyncio.sleep(agent.heartbeat_s)
                continue
            try:
                await _attached(agent, target, shown, working)
            except grpc.aio.AioRpcError as error:
                refused = _REFUSED if agent.heard else _REFUSED | _NOT_LET_IN
                is_stale = shown != _with_found_token(given, target)
                if error.code() in refused and not is_stale:
                    raise RefusedAgentError(error.details()) from error
                log(logging.WARNING, "no controller", target=target, error=error.details())
            retry_s = _FIRST_RETRY_S if agent.heard > heard else min(2 * retry_s, agent.heartbeat_s)
            await asyncio.sleep(retry_s)
    finally:
        working.cancel()
        if telling is not None:
            telling.cancel()


def _with_found_token(shown: Credentials, target: str) -> Credentials:
    """Return credentials with the local token of the target, where they have none of their own.

    It is read each time: a controller that restarts makes another one.
    """
    if shown.token or shown.certificate:
        return shown
    return replace(shown, token=local_token_finder(target)())


async def _tell(outbox: Outbox) -> None:
    """Tell outcomes, again and again until they are taken."""
    while True:
        try:
            told = await asyncio.to_thread(outbox.send)
            if told:
                log(logging.INFO, "outcomes told", outcomes=told)
        except (PresageError, OSError) as error:
            log(logging.WARNING, "outcomes not told", error=str(error))
        await asyncio.sleep(_TELL_S)


async def _attached(
    agent: Agent, target: str, credentials: Credentials, working: asyncio.Task[None]
) -> None:
    """One stream, to its end."""
    channel_credentials = credentials.channel_credentials()
    channel = (
        grpc.aio.insecure_channel(target, options=_OPTIONS)
        if channel_credentials is None
        else grpc.aio.secure_channel(target, channel_credentials, options=_OPTIONS)
    )
    async with channel:
        stub: Any = pb_grpc.NodeServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Attach(_reports(agent), metadata=credentials.metadata)
        sending = asyncio.create_task(_send_logs(agent, stub, credentials))
        reading = asyncio.create_task(_obey(agent, call, target))
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
        report.takes_pieces = True
        yield report


async def _obey(agent: Agent, call: Any, target: str) -> None:
    before, orders = agent.heard, None
    async for piece in call:
        orders = whole_orders(orders, piece)
        if orders.more:
            continue
        if agent.heard == before:
            log(logging.INFO, "attached", target=target)
        agent.hear(orders)
        orders = None


async def _send_logs(agent: Agent, stub: Any, credentials: Credentials) -> None:
    while True:
        wanted: pb.LogWanted = await agent.logs.get()
        part = await asyncio.to_thread(agent.log_part, wanted, LOG_BYTES)
        try:
            await stub.SendLog(part, metadata=credentials.metadata, timeout=10.0)
        except grpc.aio.AioRpcError as error:
            log(logging.WARNING, "a log was not sent", error=error.details())
