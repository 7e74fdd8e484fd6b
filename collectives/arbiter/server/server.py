"""Server process of an arbiter: one port for ranks and users."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from presage.collectives.arbiter.arbiter import Arbiter
from presage.collectives.arbiter.server.service import SERVICE_NAME, ArbiterService
from presage.collectives.arbiter.wire import MAX_MESSAGE_BYTES
from presage.serving.admission.backlog import Backlog, server_ids
from presage.serving.admission.connection_limits import Connections
from presage.serving.admission.grpc_options import ChannelOptions, bounded_options
from presage.serving.admission.malloc import MemoryTrimmer
from presage.serving.admission.open_calls import OpenCalls
from presage.serving.authentication.listen import (
    add_port,
    check_authentication,
    resolve_address,
    target,
)
from presage.serving.authentication.local_token import LocalToken
from presage.serving.authentication.token_file import TokenFile
from presage.serving.server import health
from presage.serving.server.access_log import AccessLog
from presage.serving.server.call import Calls
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server.reflection import add_reflection
from presage.serving.server_options import Options

DEFAULT_PORT = 7300
MAX_STREAMS = 4096
_LOCAL_ROLES = ("view", "submit", "admin")  # of the local token
_MAX_WAITING = 4_000
_OPTIONS: ChannelOptions = (
    *bounded_options(MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),  # a time line
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)


async def run_arbiter(
    arbiter: Arbiter,
    options: Options,
    on_ready: Callable[[str], None],
    metrics: Metrics,
    max_streams: int = MAX_STREAMS,
) -> None:
    """Serve until SIGTERM or SIGINT; jobs continue without the arbiter.

    Parameters
    ----------
    on_ready : callable
        Called with the address once ranks can connect.

    Raises
    ------
    ServiceError
        The server cannot listen on the host and port, or the host is not loopback and neither
        tokens nor client certificates are required.
    JournalError
        The journal cannot be written at the start.
    """
    stopped = _stop_event()
    address = resolve_address(options)
    check_authentication(address, options)
    before = server_ids()
    server = grpc.aio.server(options=_OPTIONS)
    port = add_port(server, address, options)
    async with _admission(options, metrics, port, before) as (calls, open_calls):
        service = ArbiterService(arbiter, calls, max_streams)
        served = _add_services(server, service, calls, open_calls)
        await arbiter.start()
        await _serve(arbiter, server, served, stopped, lambda: on_ready(target(address, port)))


def _stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


@asynccontextmanager
async def _admission(
    options: Options, metrics: Metrics, port: int, before: frozenset[int]
) -> AsyncIterator[tuple[Calls, OpenCalls]]:
    """Yield the admission and authentication of requests, and the open ones.

    Parameters
    ----------
    before : frozenset of int
        What ``server_ids`` returned before the server was created.
    """
    open_calls, connections = OpenCalls(), Connections(lambda: port)
    local = None if options.authenticates else LocalToken(port, _LOCAL_ROLES)
    access_log = AccessLog(on_dropped=metrics.unlogged.inc) if options.access_log else None
    calls = Calls(
        metrics,
        TokenFile(options.tokens) if options.tokens else local,
        backlog=Backlog(before, open_calls, _MAX_WAITING),
        access_log=access_log,
        certificates=options.requires_certificates,
        anonymous_roles=frozenset() if local is None else frozenset({"view"}),
        trimmer=MemoryTrimmer(),
        connections=connections,
    )
    if local is not None:
        local.write()
    bounding = asyncio.create_task(connections.run())
    try:
        yield calls, open_calls
    finally:
        bounding.cancel()
        calls.close()
        if local is not None:
            local.remove()
        if access_log is not None:
            await asyncio.to_thread(access_log.close)


def _add_services(
    server: grpc.aio.Server, service: ArbiterService, calls: Calls, open_calls: OpenCalls
) -> health.Health:
    """Add the arbiter, health and reflection to the server; return the health service."""
    served = health.Health(("", SERVICE_NAME))
    server.add_generic_rpc_handlers(
        (open_calls, service.handlers(), served.handlers(calls.unfinished))
    )
    add_reflection(server, (SERVICE_NAME,), calls.unfinished)
    return served


async def _serve(
    arbiter: Arbiter,
    server: grpc.aio.Server,
    served: health.Health,
    stopped: asyncio.Event,
    on_ready: Callable[[], None],
) -> None:
    """Serve until ``stopped`` is set, or the arbiter fails."""
    await server.start()
    served.set_serving()
    on_ready()
    arbitrating = asyncio.create_task(arbiter.run())
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait((arbitrating, waiting), return_when=asyncio.FIRST_COMPLETED)
    served.close()
    await server.stop(0.2)
    if arbitrating.done():
        await arbitrating
    arbitrating.cancel()
