"""HTTP server of the API, beside the gRPC server and with its methods, roles and limits.

It listens on a port of its own, has a thread for each connection, and answers calls in the event
loop of the gRPC server (decision 72).
"""

from __future__ import annotations

import asyncio
import ipaddress
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from presage.errors import ServiceError
from presage.serving.authentication.listen import target
from presage.serving.authentication.tls_context import tls_context
from presage.serving.http.connection import HttpLimits
from presage.serving.http.http_server import BoundedServer
from presage.serving.http.memory_budget import MemoryBudget
from presage.serving.rest.http_call import Answer
from presage.serving.rest.json_methods import JsonMethods
from presage.serving.rest.rest_handler import RestHandler
from presage.serving.rest.routes import ROUTES, Route
from presage.serving.server.call import Calls, Method
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server_options import Options

LIMITS = HttpLimits(connections=128, per_peer=64)
_MIB = 2**20
_MEMORY_MIB, _ANONYMOUS_MEMORY_MIB = 256, 96
_POLL_S = 0.2  # between two checks whether to stop
_LAST_REQUEST_S = 0.1  # without a request, before the port is closed
_END_S = 1.0  # for idle connections to be closed


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Route, and the function that answers its calls."""

    route: Route
    answer: Answer


class RestServer(BoundedServer):
    """HTTP server on a thread of its own, from construction until :meth:`stop`.

    Parameters
    ----------
    endpoints : mapping
        Endpoints by path and HTTP method.
    is_serving : callable
        Returns whether the gRPC server is healthy.
    loop : AbstractEventLoop
        Event loop that answers calls.

    Raises
    ------
    OSError, OverflowError
        The server cannot listen on the address.
    ServiceError
        A certificate cannot be loaded.
    """

    def __init__(
        self,
        address: str,
        options: Options,
        endpoints: Mapping[str, Mapping[str, Endpoint]],
        is_serving: Callable[[], bool],
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        tls = None if options.tls is None else tls_context(options.tls)
        super().__init__(
            (address, options.http_port or 0), RestHandler, limits=LIMITS, tls=tls,
            shared_port=options.shared_port,
        )  # fmt: skip
        self.port = int(self.server_address[1])
        self.url = f"http{'s' if tls else ''}://{target(address, self.port)}"
        self.endpoints = endpoints
        self.is_serving = is_serving
        self.metrics = metrics
        self.loop = loop
        self.reads_names = options.requires_certificates
        # A page of another site can send requests to a loopback server under a name of its own
        # (DNS rebinding). Without credentials to check, names are.
        is_loopback = ipaddress.ip_address(address).is_loopback
        self.checks_host = is_loopback and not options.authenticates
        self.openapi = files("presage.serving.rest").joinpath("openapi.json").read_bytes()
        self.memory = MemoryBudget(_MEMORY_MIB * _MIB)
        self.anonymous_memory = MemoryBudget(_ANONYMOUS_MEMORY_MIB * _MIB)
        self._active = 0
        self._last_request_s = 0.0
        self._changed = threading.Condition()
        self._serving = threading.Thread(
            target=self.serve_forever, args=(_POLL_S,), name="rest", daemon=True
        )
        self._serving.start()

    @contextmanager
    def active_request(self) -> Iterator[None]:
        """Count a request until its response has been sent."""
        with self._changed:
            self._active += 1
            self._last_request_s = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def drain(self) -> None:
        """Close each connection after its next response."""
        self.stopping = True

    def stop(self, grace_s: float = 0.0) -> None:
        """Wait for requests in flight, and close the port and all connections.

        Requests that arrive meanwhile are answered, by calls that reject them.
        """
        end_s = time.monotonic() + grace_s
        self.stopping = True
        with self._changed:
            while (now_s := time.monotonic()) < end_s:
                # Closing the port would reset the connections that are not yet accepted.
                if not self._active and now_s - self._last_request_s > _LAST_REQUEST_S:
                    break
                self._changed.wait(_POLL_S / 4)
        self.shutdown()
        self.connections.drain(max(_END_S, end_s - time.monotonic()))
        self.server_close()
        self._serving.join()


def endpoints(
    methods: Mapping[str, Method], calls: Calls, json_methods: JsonMethods
) -> dict[str, dict[str, Endpoint]]:
    """Return the endpoints by path and HTTP method."""
    out: dict[str, dict[str, Endpoint]] = {}
    for route in ROUTES:
        role, answer = methods[route.method]
        method = json_methods.convert(answer, route.descriptor)
        handler: Any = calls.unary(route.method, role, method)
        out.setdefault(route.path, {})[route.verb] = Endpoint(route, handler.stream_unary)
    return out


def start_rest(
    address: str,
    options: Options,
    endpoints_by_path: Mapping[str, Mapping[str, Endpoint]],
    is_serving: Callable[[], bool],
    metrics: Metrics,
) -> RestServer:
    """Start the HTTP server of the running event loop.

    Raises
    ------
    ServiceError
        The server cannot listen on the port, or a certificate cannot be loaded.
    """
    loop = asyncio.get_running_loop()
    try:
        return RestServer(address, options, endpoints_by_path, is_serving, metrics, loop)
    except (OSError, OverflowError) as error:
        raise ServiceError(
            f"cannot listen for HTTP on port {options.http_port} of {options.host} ({error}); "
            "pass another --http-port"
        ) from error
