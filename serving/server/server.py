"""The gRPC server: prediction, inference protocol, health and reflection on one port.

HTTP/JSON is served on another port if the options have one.

The server listens before its release is loaded, so that a load balancer sees it early; until then
calls end with UNAVAILABLE. When it stops, it first reports NOT_SERVING and then finishes the calls
in flight.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc

from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.drift.drift_test import DriftPolicy
from presage.models.release.release import Release
from presage.serving.admission.backlog import Backlog, server_ids
from presage.serving.admission.connection_limits import Connections
from presage.serving.admission.grpc_options import ChannelOptions, bounded_options
from presage.serving.admission.limits import RateLimit
from presage.serving.admission.malloc import MemoryTrimmer, tune_malloc
from presage.serving.admission.open_calls import OpenCalls
from presage.serving.authentication import local_token
from presage.serving.authentication.listen import (
    add_port,
    check_authentication,
    resolve_address,
    target,
)
from presage.serving.authentication.local_token import LocalToken
from presage.serving.authentication.token_file import TokenFile
from presage.serving.codec.descriptors import descriptors
from presage.serving.codec.request_limits import FRAME_BYTES, MAX_MESSAGE_BYTES
from presage.serving.outcomes.drift_watch import DriftWatch
from presage.serving.outcomes.outcome_log import OutcomeLog
from presage.serving.predictor.release_follower import ReleaseFollower, Source
from presage.serving.predictor.served_release import Served
from presage.serving.server import health, inference_service, prediction_service
from presage.serving.server.access_log import AccessLog
from presage.serving.server.call import Calls, Span, no_span
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server.reflection import add_reflection
from presage.serving.server.work_queue import WorkQueue
from presage.serving.server_options import Options

if TYPE_CHECKING:
    from presage.serving.rest.json_methods import JsonMethods
    from presage.serving.rest.rest_server import RestServer

SERVICES = (prediction_service.SERVICE_NAME, inference_service.SERVICE_NAME)

NO_ROLES: frozenset[str] = frozenset()
# For a server without tokens and client certificates: other users of the machine have read access
# only, the user that started it has all roles.
ANONYMOUS_ROLES = frozenset({"predict"})
LOCAL_ROLES = ("predict", "report", "admin")
# Draining. Streams of reflection end when their clients end them. If no call arrives for a while,
# only such streams are left, and the server does not wait for them.
_POLL_S, _LAST_CALL_S, _IDLE_S = 0.01, 0.1, 0.5
_STOP_S = 0.3  # for calls that were under way to a busy machine; idle streams use all of it
_PAUSE_FACTOR = 10  # pause after a check, in durations of the check: long with many connections


def _options(shares_port: bool) -> ChannelOptions:
    return (
        *bounded_options(MAX_MESSAGE_BYTES),
        # Otherwise Linux lets two servers listen on one port, and each gets half of the calls.
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.http2.max_frame_size", FRAME_BYTES),
        ("grpc.max_connection_idle_ms", 600_000),  # without a call; a client connects again
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    )


class Server:
    """gRPC server in the running event loop.

    ``trimmer`` returns the memory of large requests to the kernel; pass it only if the process
    runs nothing but the server.
    """

    def __init__(
        self,
        options: Options,
        metrics: Metrics,
        span: Span = no_span,
        trimmer: MemoryTrimmer | None = None,
    ) -> None:
        self.options = options
        self.host = resolve_address(options)
        check_authentication(self.host, options)
        self.port = options.port
        tokens = TokenFile(options.tokens) if options.tokens else None
        self._local_token: LocalToken | None = None
        rate = RateLimit(options.rows_per_s) if options.rows_per_s else None
        self.metrics = metrics
        self.served = Served(metrics, max_change=options.max_change)
        self._work = WorkQueue(metrics, max_queued_rows=options.queue_rows)
        self._outcomes = None
        if options.outcomes:
            self._outcomes = OutcomeLog(options.outcomes, open_now=False)
        self._health = health.Health(("", *SERVICES, *QUANTITIES))
        self._follower: ReleaseFollower | None = None
        self._stopped = False
        self._following: asyncio.Task[None] | None = None
        self._bounding: asyncio.Task[None] | None = None
        self._watch: DriftWatch | None = None
        self._watching: asyncio.Task[None] | None = None
        if options.outcomes:
            self._watch = DriftWatch(
                options.outcomes, self.served, metrics, DriftPolicy(options.false_alarm_outcomes),
                every_s=options.drift_s, has_offsets=options.offsets,
            )  # fmt: skip
        before = server_ids()
        self._server = grpc.aio.server(options=_options(options.shared_port))
        open_calls, self._connections = OpenCalls(), Connections(lambda: self.port)
        self._backlog = Backlog(before, open_calls, options.queue_calls)
        self._access_log = None
        if options.access_log:
            self._access_log = AccessLog(on_dropped=metrics.unlogged.inc)
        self._calls = Calls(
            metrics, tokens, NO_ROLES if options.authenticates else ANONYMOUS_ROLES, rate,
            self._backlog, self._access_log, certificates=options.requires_certificates,
            span=span, trimmer=trimmer, connections=self._connections,
        )  # fmt: skip
        self._prediction = prediction_service.PredictionService(
            self.served, self._calls, self._work, self._outcomes, self._reload
        )
        inference = inference_service.InferenceService(self.served, self._calls, self._work)
        self._server.add_generic_rpc_handlers(
            (
                open_calls,
                self._prediction.handlers(),
                inference.handlers(),
                self._health.handlers(self._calls.unfinished),
            )
        )
        self._rest: RestServer | None = None
        self._json_methods: JsonMethods | None = None
        names = (*SERVICES, health.SERVICE_NAME)
        add_reflection(self._server, names, self._calls.unfinished, descriptors())

    async def start(self, source: Release | Source) -> None:
        """Listen, load the release of the source, and start to answer.

        Raises
        ------
        RegistryError, ReleaseError, ServiceError
            The release or the port is not available; the server has stopped listening.
        """
        self.port = add_port(self._server, self.host, self.options)
        if self.options.http_port is not None:
            self._rest = self._start_rest()
        self._make_local_token()
        await self._server.start()
        try:
            if isinstance(source, Release):
                await asyncio.to_thread(self.served.offer, source)
            else:
                self._follower = ReleaseFollower(self.served, source, poll_s=self.options.poll_s)
                await self._follower.load()
            # Last, so that a server that cannot start creates no file.
            if self._outcomes is not None:
                await asyncio.to_thread(self._outcomes.open)
            if self._local_token is not None:
                self._local_token.write()
        except BaseException:
            await self.stop(0)
            raise
        self._health.set_serving()
        if self._follower is not None:
            self._following = asyncio.create_task(self._follower.run())
        self._bounding = asyncio.create_task(self._connections.run())
        if self._watch is not None:
            self._watching = asyncio.create_task(self._watch.run())

    async def stop(self, grace_s: float) -> None:
        """Report NOT_SERVING, reject new calls, and finish the calls in flight.

        Calls that still run ``grace_s`` after the drain are cancelled. A second call does nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        self._health.close()
        if self._rest is not None:
            self._rest.drain()
        if self._following is not None:
            self._following.cancel()
        if self._bounding is not None:
            self._bounding.cancel()
        if self._watch is not None and self._watching is not None:
            self._watch.close()
            self._watching.cancel()
        if grace_s:
            await asyncio.sleep(self.options.drain_s)
        self._prediction.close()
        self._calls.is_closing = True
        end_s = time.monotonic() + grace_s
        await self._wait_until_drained(end_s)
        if self._rest is not None:
            await asyncio.to_thread(self._rest.stop, max(0.0, end_s - time.monotonic()))
        # Idle streams, such as those of reflection, are not waited for.
        await self._server.stop(min(_STOP_S, max(0.0, end_s - time.monotonic())))
        self._work.close()
        if self._json_methods is not None:
            self._json_methods.close()
        self._calls.close()
        if self._local_token is not None:
            self._local_token.remove()
        if self._access_log is not None:
            await asyncio.to_thread(self._access_log.close)
        if self._outcomes is not None:
            await asyncio.to_thread(self._outcomes.close)

    @property
    def address(self) -> str:
        """GRPC target, and the URL of HTTP/JSON if it is served."""
        where = target(self.host, self.port)
        return where if self._rest is None else f"{where} and {self._rest.url}"

    @property
    def http_port(self) -> int | None:
        """Port of HTTP/JSON; None if it is not served."""
        return None if self._rest is None else self._rest.port

    def _start_rest(self) -> RestServer:
        # A server without HTTP/JSON does without these modules.
        from presage.serving.rest.json_methods import JsonMethods
        from presage.serving.rest.rest_server import endpoints, start_rest

        self._json_methods = JsonMethods()
        routes = endpoints(self._prediction.methods(), self._calls, self._json_methods)
        return start_rest(
            self.host, self.options, routes, lambda: self._health.is_serving, self.metrics
        )

    def _make_local_token(self) -> None:
        """Give this user's clients all roles of a server that requires no credentials."""
        if self.options.authenticates:
            return
        self._local_token = LocalToken(
            self.port, LOCAL_ROLES, os.environ.get(local_token.ENVIRONMENT_VARIABLE)
        )
        self._calls.tokens = self._local_token

    async def _wait_until_drained(self, end_s: float) -> None:
        """Wait until all calls that have arrived are answered, until ``end_s`` at the latest.

        ``end_s`` is by ``time.monotonic()``. When gRPC stops, it cancels the calls that wait inside
        it, and their clients would not know whether to retry.
        """
        previous, since_s = (-1, -1), 0.0
        while (now_s := time.monotonic()) < end_s:
            calls = self._backlog.count_calls()
            took_s = time.monotonic() - now_s
            if calls != previous:
                previous, since_s = calls, now_s
            # The client of the last response may send another call, which must be rejected.
            idle_s = _IDLE_S if calls[1] else _LAST_CALL_S
            if not self._calls.in_flight and now_s - since_s > idle_s:
                return
            pause_s = max(_POLL_S, _PAUSE_FACTOR * took_s)
            await asyncio.sleep(min(pause_s, max(0.0, end_s - time.monotonic())))

    async def _reload(self) -> None:
        if self._follower is not None:
            await self._follower.load()


async def run_server(
    source: Release | Source,
    options: Options,
    metrics: Metrics,
    on_ready: Callable[[str, str], None],
    *,
    span: Span = no_span,
    until_input_ends: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the process at once.

    Parameters
    ----------
    on_ready : callable
        Called with the server's address and release id once it answers.
    until_input_ends : bool
        Whether to drain also at the end of standard input, which is when the parent has ended;
        further signals are then ignored.

    Raises
    ------
    ReleaseError
        The release cannot predict.
    RegistryError
        The champion cannot be fetched.
    ServiceError
        The server cannot listen on the host or port, or the address is not a loopback address and
        the options do not allow that.
    """
    tune_malloc()  # this process runs nothing but the server
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    server = Server(options, metrics, span, trimmer=MemoryTrimmer())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if until_input_ends:

        def end() -> None:
            loop.remove_reader(sys.stdin.fileno())  # it stays readable, and would loop forever
            stopped.set()

        loop.add_reader(sys.stdin.fileno(), end)
    starting = asyncio.create_task(server.start(source))
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        return
    await starting
    on_ready(server.address, server.served.predictor.release_id)
    await waiting
    # A worker gets two signals when a signal is sent to the process group (Ctrl-C, systemd): one
    # directly and one from its parent. The parent kills it after the grace period.
    if not until_input_ends:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    await server.stop(options.grace_s)
