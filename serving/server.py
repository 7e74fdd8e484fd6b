"""The gRPC server: prediction, health and reflection on one port; drains when it is stopped."""

from __future__ import annotations

import errno
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from presage.features.errors import ServiceError
from presage.models.release import Release
from presage.serving.predictor import Predictor
from presage.serving.servicer import SERVICE_NAME, PredictionServicer
from presage.serving.v1 import prediction_pb2_grpc as pb_grpc
from presage.serving.wire_requests import MAX_MESSAGE_BYTES

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 50051
# Predictions run inline and hold the interpreter's lock for most of their time, so threads add
# no throughput; these keep one long request, or an open reflection stream, from blocking others.
WORKERS = 8
GRACE_S = 10.0

_OPTIONS = (
    # Linux would otherwise let two servers listen on one port, each getting half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


class RunningServer:
    """A server that is listening. As a context manager it is stopped at the end.

    Attributes
    ----------
    host : str
    port : int
        The real one, where any free port was asked for.
    target : str
        What a client is given.
    """

    def __init__(
        self, server: grpc.Server, health_servicer: health.HealthServicer, host: str, port: int
    ) -> None:
        self.host = host
        self.port = port
        self.target = _target(host, port)
        self._server = server
        self._health = health_servicer

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Say NOT_SERVING, take no new call, and wait for those in flight.

        Calls still running after ``grace_s`` are cancelled. Stopping twice does nothing.
        """
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


def start_server(
    release: Release,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    allow_remote: bool = False,
    workers: int = WORKERS,
) -> RunningServer:
    """Load a release and serve it; returns once the server answers.

    Parameters
    ----------
    port : int
        0 for any that is free.
    allow_remote : bool
        Whether to listen beyond loopback. The server neither encrypts nor asks who calls.

    Raises
    ------
    ReleaseError
        The release cannot predict. Nothing has listened then.
    ServiceError
        The host or port cannot be listened on, or is not loopback.
    """
    address = _address(host, port, allow_remote=allow_remote)
    predictor = Predictor(release)
    predictor.warm_up()

    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="presage-grpc")
    server = grpc.server(pool, options=_OPTIONS)
    pb_grpc.add_PredictionServiceServicer_to_server(  # type: ignore[no-untyped-call]
        PredictionServicer(predictor), server
    )
    health_servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    # Its own default is SERVING.
    _set_health(health_servicer, health_pb2.HealthCheckResponse.NOT_SERVING)
    names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    try:
        bound_port = server.add_insecure_port(_target(address, port))
    except RuntimeError as error:  # taken since _address looked
        raise ServiceError(_in_use(host, port)) from error
    server.start()
    _set_health(health_servicer, health_pb2.HealthCheckResponse.SERVING)
    return RunningServer(server, health_servicer, address, bound_port)


def serve(
    release: Release,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    allow_remote: bool = False,
    workers: int = WORKERS,
    grace_s: float = GRACE_S,
    on_ready: Callable[[RunningServer], None] = lambda _: None,
) -> None:
    """Serve a release until SIGTERM or SIGINT, then finish the calls in flight and return.

    To be called from the main thread. ``on_ready`` is given the server once it answers; a second
    signal while calls are being finished has its usual effect.

    Raises
    ------
    ReleaseError, ServiceError
        As :func:`start_server`.
    """
    with _stop_signals() as signals:
        running = start_server(
            release, host=host, port=port, allow_remote=allow_remote, workers=workers
        )
        try:
            on_ready(running)
            signals.get()
        except BaseException:
            running.stop(0)  # else its threads would keep the process alive
            raise
    running.stop(grace_s)


@contextmanager
def _stop_signals() -> Iterator[SimpleQueue[int]]:
    """SIGTERM and SIGINT as items of a queue, for as long as the block runs."""
    # Not threading.Event: a handler runs in the thread that waits, and could find its lock taken.
    signals: SimpleQueue[int] = SimpleQueue()
    before = {
        number: signal.signal(number, lambda number, _: signals.put(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _set_health(servicer: health.HealthServicer, status: int) -> None:
    for name in (health.OVERALL_HEALTH, SERVICE_NAME):
        servicer.set(name, status)


def _address(host: str, port: int, *, allow_remote: bool) -> str:
    """The one address to listen on, once it is sure that it may be and can be.

    One, though a name may have several: gRPC is content with any of them, and a server on
    [::1]:50051 would not notice the other one on 127.0.0.1:50051.
    """
    if not 0 <= port <= 65535:
        raise ServiceError(f"port {port} does not exist; pass --port 0 to 65535 (0: any free)")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ServiceError(
            f"host {host!r} has no address ({error}); pass --host 127.0.0.1, or an address of "
            "this machine with --allow-remote"
        ) from error
    family, _, _, _, where = min(found, key=lambda row: row[0] != socket.AF_INET)
    address = str(where[0])
    if not (allow_remote or ipaddress.ip_address(address).is_loopback):
        raise ServiceError(
            f"{host} is not a loopback address, and this server neither encrypts nor asks who "
            "calls; listen on 127.0.0.1, or pass --allow-remote on a network that you trust"
        )
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As gRPC does it: connections of a server just stopped do not keep the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ServiceError(_in_use(host, port)) from error
            raise ServiceError(
                f"cannot listen on {_target(host, port)} ({error.strerror}); pass another --host "
                "or --port"
            ) from error
    return address


def _in_use(host: str, port: int) -> str:
    return f"port {_target(host, port)} is in use; stop the other server or pass --port"


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
