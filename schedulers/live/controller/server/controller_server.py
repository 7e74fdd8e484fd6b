"""Server process of the controller: one port for users and agents."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from pathlib import Path

import grpc

from presage.schedulers.live.controller.controller import Controller
from presage.schedulers.live.controller.elastic.leaders import Leaders
from presage.schedulers.live.controller.history.history_file import open_history
from presage.schedulers.live.controller.history.history_recorder import HistoryRecorder
from presage.schedulers.live.controller.server import cluster_service, node_service
from presage.schedulers.live.controller.server.job_logs import Logs
from presage.schedulers.live.protocol.wire import MAX_MESSAGE_BYTES
from presage.serving.admission.backlog import Backlog, server_ids
from presage.serving.admission.connection_limits import MAX_CONNECTIONS_PER_HOST, Connections
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
from presage.serving.server.call import Calls, no_span
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server.reflection import add_reflection
from presage.serving.server_options import Options

_LOCAL_ROLES = ("view", "submit", "agent", "admin")  # of the local token
SERVICES = (cluster_service.SERVICE_NAME, node_service.SERVICE_NAME)
# As many calls as a dozen connections can open at once, so that no burst is rejected.
_MAX_WAITING = 4_000
MAX_CONNECTIONS = 20_000  # a large cluster has 10,000 agents with a connection each
_OPTIONS: ChannelOptions = (
    *bounded_options(MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),  # a list of all jobs
    # Longer than between heartbeats: the connections of a large cluster need no pings.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # After a stall of a minute, three pings of each agent arrive at once.
    ("grpc.http2.max_ping_strikes", 10),
)


async def run_controller(
    controller: Controller,
    options: Options,
    policy: str,
    on_ready: Callable[[str], None],
    metrics: Metrics,
    leaders: Path,
    history: Path | None = None,
    *,
    max_connections_per_host: int = MAX_CONNECTIONS_PER_HOST,
) -> None:
    """Serve until SIGTERM or SIGINT; jobs and agents continue without the controller.

    Parameters
    ----------
    leaders : Path
        Folder for the files of the leaders of elastic jobs.
    history : Path, optional
        File with the history of the cluster; without it, none is recorded.
    max_connections_per_host : int
        Limit on the connections of one host.

    Raises
    ------
    ServiceError
        The server cannot listen on the host and port, or the host is not loopback and neither
        tokens nor client certificates are required.
    JournalError
        The state of the journal is unknown; the controller must be restarted.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    address = resolve_address(options)
    check_authentication(address, options)
    before = server_ids()
    server = grpc.aio.server(options=_OPTIONS)
    port = add_port(server, address, options)
    open_calls = OpenCalls()
    connections = Connections(
        lambda: port, max_per_host=max_connections_per_host, max_connections=MAX_CONNECTIONS
    )
    local = None if options.authenticates else LocalToken(port, _LOCAL_ROLES)
    access_log = AccessLog(on_dropped=metrics.unlogged.inc) if options.access_log else None
    calls = Calls(
        metrics,
        TokenFile(options.tokens) if options.tokens else local,
        backlog=Backlog(before, open_calls, _MAX_WAITING),
        access_log=access_log,
        certificates=options.requires_certificates,
        anonymous_roles=frozenset() if local is None else frozenset({"view"}),
        span=no_span if controller.spans is None else controller.spans.of_requests(),
        trimmer=MemoryTrimmer(),
        connections=connections,
    )
    logs = Logs(controller)
    kept = None if history is None else open_history(history)
    served = health.Health(("", *SERVICES))
    server.add_generic_rpc_handlers(
        (
            open_calls,
            cluster_service.ClusterService(controller, calls, logs, policy, kept).handlers(),
            node_service.NodeService(controller, calls, logs).handlers(),
            served.handlers(calls.unfinished),
        )
    )
    add_reflection(server, SERVICES, calls.unfinished)
    await controller.begin()
    if local is not None:
        local.write()
    bounding = asyncio.create_task(connections.run())
    leading = asyncio.create_task(Leaders(controller, leaders, address).run())
    recording = (
        None if kept is None else asyncio.create_task(HistoryRecorder(controller, kept).run())
    )
    try:
        await _serve(controller, server, served, stopped, lambda: on_ready(target(address, port)))
    finally:
        leading.cancel()
        bounding.cancel()
        if recording is not None:
            recording.cancel()
        if kept is not None:
            kept.close()
        calls.close()
        if local is not None:
            local.remove()
        if access_log is not None:
            await asyncio.to_thread(access_log.close)


async def _serve(
    controller: Controller,
    server: grpc.aio.Server,
    served: health.Health,
    stopped: asyncio.Event,
    on_ready: Callable[[], None],
) -> None:
    """Serve and make decisions until ``stopped`` is set, or the controller fails."""
    await server.start()
    served.set_serving()
    on_ready()
    # The state of a large cluster is millions of objects, which full collections need not visit.
    gc.freeze()
    deciding = asyncio.create_task(controller.run())
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait((deciding, waiting), return_when=asyncio.FIRST_COMPLETED)
    served.close()
    await server.stop(0.2)
    if deciding.done():
        await deciding
    deciding.cancel()
